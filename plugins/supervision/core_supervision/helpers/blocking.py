"""A helper process for threads that block.

Owns: the thread of its event loop. Never does: use a loop of its caller. Called by: what compiles grammars, and what asks a
process once.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError

from core_supervision.helpers.helper import Helper
from core_supervision.helpers.lane import Lane
from core_supervision.helpers.link import Buffer, HelperEnded


class BlockingHelper:
    """A helper for threads that block. Its event loop has a thread of its own."""

    def __init__(self, helper: Helper) -> None:
        self._helper = helper
        self._closing = asyncio.Event()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="helper", daemon=True)
        self._thread.start()

    def ask(self, *message: Buffer) -> memoryview:
        """Return the answer to a job as `Helper.ask` does. Raises HelperEnded."""
        with self._lock:
            if self._closed:
                raise HelperEnded("it was closed")
            asked = asyncio.run_coroutine_threadsafe(self._helper.ask(*message), self._loop)
        try:
            return asked.result()
        except CancelledError:
            raise HelperEnded("it was closed") from None

    def close(self) -> None:
        """End the process for good, even in the middle of a job. May be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._until_closed())

    async def _until_closed(self) -> None:
        await self._closing.wait()
        await self._helper.close()


def ask_once(lane: Lane, job: bytes) -> memoryview:
    """Return the answer of a process that is started for this job alone. Blocks. Raises HelperEnded."""
    helper = BlockingHelper(Helper(lane))
    try:
        return helper.ask(job)
    finally:
        helper.close()
