"""The interface of an endpoint, independent of the transport.

Owns: `Endpoint`, `Answer` and their error. Never does: transport anything. Called by: all clients of a server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from core.api.errors import CoreError

LONGEST_ANSWER = 256 * 1024 * 1024
"""Limit in bytes on an answer that is read whole."""


class EndpointError(CoreError):
    """Raised when a server is unreachable, or its answer was interrupted; the message names it."""


class Answer(Protocol):
    """An answer while it arrives.

    status: of HTTP.
    headers: by lower-case name; the last one of duplicates.
    arrived: arrival time of the last part, in `time.perf_counter()`.
    """

    status: int
    arrived: float

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the headers by lower-case name."""
        ...

    def parts(self) -> AsyncIterator[bytes]:
        """Yield the body's parts as they arrive. Raises EndpointError when it is interrupted."""
        ...


class Endpoint(Protocol):
    """A server, or an application in this process.

    name: for messages.
    """

    name: str

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[Answer]:
        """Send one request; leaving the block early cancels it on the server as well.

        path: such as /v1/models. Raises EndpointError.
        """
        ...

    async def close(self) -> None:
        """Close the endpoint's connections."""
        ...


async def whole(answer: Answer) -> bytes:
    """Return the whole body. Raises EndpointError when it exceeds `LONGEST_ANSWER`, or is interrupted."""
    body = bytearray()
    async for part in answer.parts():
        body += part
        if len(body) > LONGEST_ANSWER:
            raise EndpointError(f"The answer is longer than {LONGEST_ANSWER >> 20} MiB, which is taken for a mistake.")
    return bytes(body)
