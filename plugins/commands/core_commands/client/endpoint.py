"""Where requests go, whatever carries them.

Owns: `Endpoint`, `Answer` and their error. Never does: carry anything. Called by: all that asks a server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from core.api.errors import CoreError

LONGEST_ANSWER = 256 * 1024 * 1024
"""Bytes of an answer that is read whole."""


class EndpointError(CoreError):
    """A server cannot be reached, or its answer broke off; the sentence names it."""


class Answer(Protocol):
    """The answer to one request, while it arrives.

    status: of HTTP.
    headers: by lower-case name; of several with one name the last.
    arrived: when the last part came, as `time.perf_counter()` says.
    """

    status: int
    arrived: float

    @property
    def headers(self) -> Mapping[str, str]:
        """See above."""
        ...

    def parts(self) -> AsyncIterator[bytes]:
        """The body, as it comes. Raises EndpointError when it breaks off."""
        ...


class Endpoint(Protocol):
    """A server, or an application in this process.

    name: for people.
    """

    name: str

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[Answer]:
        """Send one request; leaving the block early ends it on the other side as well.

        path: such as /v1/models.
        Raises EndpointError.
        """
        ...

    async def close(self) -> None:
        """Give connections back."""
        ...


async def whole(answer: Answer) -> bytes:
    """All of a body. Raises EndpointError when it is longer than `LONGEST_ANSWER`, or breaks off."""
    body = bytearray()
    async for part in answer.parts():
        body += part
        if len(body) > LONGEST_ANSWER:
            raise EndpointError(f"The answer is longer than {LONGEST_ANSWER >> 20} MiB, which is taken for a mistake.")
    return bytes(body)
