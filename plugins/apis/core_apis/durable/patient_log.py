"""Events that wait for readers for a limited time.

Owns: `PatientLog`: its readers, and the action when it has had none for a while. Never does: make events. Called by:
streams and responses that outlive their connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from core_apis.responses.event_log import EventLog


class PatientLog(EventLog):
    """An event log with a time limit on having no reader.

    patience_s: seconds without a reader, from now on, until `on_deserted` is called.
    """

    def __init__(self, patience_s: float, on_deserted: Callable[[], None]) -> None:
        super().__init__()
        self._patience_s = patience_s
        self._on_deserted = on_deserted
        self._num_readers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def close(self) -> None:
        """Close the log as in `EventLog`, and stop the timer."""
        super().close()
        self._stop_waiting()

    async def follow(self, start: int) -> AsyncGenerator[bytes, None]:
        """Yield the events from `start` on, as in `EventLog`, and count as a reader meanwhile."""
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
