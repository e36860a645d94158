"""The events of a streamed response, stored for clients that read later or again.

Owns: `EventLog`. Never does: make events. Called by: `core_apis.responses.run` (appends), the route (follows).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence


class EventLog:
    """The events of one stream.

    events: as they were sent; the index of each is its sequence number. num_bytes: of all of them.
    """

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.num_bytes = 0
        self.closed = False
        self._wake: asyncio.Event | None = None

    def append(self, events: Sequence[bytes]) -> None:
        """Append events, and wake the readers."""
        self.events += events
        self.num_bytes += sum(map(len, events))
        self._notify()

    def close(self) -> None:
        """Close the log: there will be no more events."""
        self.closed = True
        self._notify()

    async def follow(self, start: int) -> AsyncGenerator[bytes, None]:
        """Yield the events from number `start` to the last one, and wait for those that are still to come."""
        while True:
            news = self.events[start:]
            start += len(news)
            if news:
                yield b"".join(news)
            elif self.closed:
                return
            else:
                self._wake = self._wake or asyncio.Event()
                await self._wake.wait()

    def _notify(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None
