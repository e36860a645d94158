"""The events of a streamed response, kept for those who ask later or again.

Owns: `EventLog`. Never does: make events. Called by: `core_apis.responses.run` (appends), the route (follows).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence


class EventLog:
    """events: as they were sent; the place of each is its sequence number. num_bytes: of all of them."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.num_bytes = 0
        self.closed = False
        self._wake: asyncio.Event | None = None

    def append(self, events: Sequence[bytes]) -> None:
        """More events."""
        self.events += events
        self.num_bytes += sum(map(len, events))
        self._notify()

    def close(self) -> None:
        """There will be no more."""
        self.closed = True
        self._notify()

    async def follow(self, start: int) -> AsyncGenerator[bytes, None]:
        """The events from the number `start` on, until the last one."""
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
