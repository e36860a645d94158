"""Server-sent events from the bytes of an answer.

Owns: lines and events. Never does: read a network, know what an event says. Called by: whoever reads a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from core_commands.client.endpoint import Answer, EndpointError

LONGEST_EVENT = 64 * 1024 * 1024
"""A stream with so many bytes and no line break is refused: it is no stream of events."""
DONE = b"[DONE]"
"""The data of the last event, of servers that have one."""
REST_SECONDS = 2.0
"""How long the end of an answer may take to follow its last event."""


@dataclass(frozen=True, slots=True)
class Event:
    """data: of one event, without `data: `. arrived: when it came, as `time.perf_counter()` says."""

    data: bytes
    arrived: float


async def events(answer: Answer) -> AsyncIterator[Event]:
    """The events of a stream up to `DONE`, or its end. Raises EndpointError when the stream breaks off.

    What follows `DONE` is read and dropped, so that the connection can be used again.
    """
    rest = b""
    lines: list[bytes] = []
    parts = answer.parts()
    async for part in parts:
        *ended, rest = (rest + part).split(b"\n")
        if len(rest) > LONGEST_EVENT:
            raise EndpointError(f"A line of the stream is longer than {LONGEST_EVENT >> 20} MiB.")
        for line in ended:
            text = line.rstrip(b"\r")
            if text.startswith(b"data:"):
                lines.append(text[5:].removeprefix(b" "))
            elif not text and lines:
                data = b"\n".join(lines)
                lines = []
                yield Event(data, answer.arrived)
                if data == DONE:
                    await _drop(parts)
                    return


async def _drop(parts: AsyncIterator[bytes]) -> None:
    """Read what is left; a server that does not end its answer is not waited for."""
    with suppress(TimeoutError):
        async with asyncio.timeout(REST_SECONDS):
            async for _ in parts:
                pass
