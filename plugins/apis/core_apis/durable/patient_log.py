"""Events that wait for readers, but not for ever.

Owns: `PatientLog`: who reads, and what happens when nobody does for a while. Never does: make events.
Called by: streams and responses that outlive their connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from core_apis.responses.event_log import EventLog


class PatientLog(EventLog):
    """patience_s: seconds without a reader until `on_deserted` is called; from now on."""

    def __init__(self, patience_s: float, on_deserted: Callable[[], None]) -> None:
        super().__init__()
        self._patience_s = patience_s
        self._on_deserted = on_deserted
        self._num_readers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def close(self) -> None:
        """As for others; nobody is waited for any more."""
        super().close()
        self._stop_waiting()

    async def follow(self, start: int) -> AsyncGenerator[bytes, None]:
        """As for others."""
        self._num_readers += 1
        self._stop_waiting()
        try:
            async with aclosing(super().follow(start)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            self._num_readers -= 1
            if not (self._num_readers or self.closed):
                self._wait()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._patience_s, self._on_deserted)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
