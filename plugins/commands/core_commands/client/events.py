"""Parsing of server-sent events from the bytes of an answer.

Owns: lines and events. Never does: read a network, interpret an event. Called by: all readers of a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from core_commands.client.endpoint import Answer, EndpointError

LONGEST_EVENT = 64 * 1024 * 1024
"""Limit on bytes without a line break; a longer run is rejected, because it is no event stream."""
DONE = b"[DONE]"
"""Data of the last event, on servers that send one."""
REST_SECONDS = 2.0
"""Time allowed between the last event and the end of the answer."""


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event. data: without `data: `. arrived: arrival time in `time.perf_counter()`."""

    data: bytes
    arrived: float


async def events(answer: Answer) -> AsyncIterator[Event]:
    """Yield the events of a stream up to `DONE`, or its end. Raises EndpointError when the stream breaks off.

    Bytes after `DONE` are read and dropped, so that the connection can be reused.
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
    """Read the rest, with a time limit for a server that does not end its answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(REST_SECONDS):
            async for _ in parts:
                pass
