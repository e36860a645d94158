"""The threads that write records to the disk.

Owns: their order, groups of records that share a write and a sync, and the reaction when the disk refuses them. Never
does: block the event loop, which only puts records into a queue and may wait for them. Called by: the journal.

One thread writes as soon as there is something to write. Another one syncs everything written meanwhile in one go, and
removes files with few live records. So no record waits for a sync that was not requested.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable

from core_apis.journal.records import Frame
from core_apis.journal.segments import Segments

logger = logging.getLogger(__name__)

SYNC_S = 0.02
"""Minimum number of seconds between two syncs."""
RETRY_S = 1.0
"""Seconds until a disk that refused is tried again."""
STALL_S = 5.0
"""Seconds after which a disk that does not answer counts as failed."""
GROUP = 512
"""Maximum number of records in one write."""

FailureHandler = Callable[[Iterable[int]], None]


class Milestone:
    """A count of the records that have reached a stage, such as written or synced.

    Used by the event loop's thread only.
    """

    def __init__(self) -> None:
        self._reached = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def wait(self, count: int) -> None:
        """Wait until `count` records have reached this stage."""
        if self._reached >= count:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((count, future))
        await future

    def reach(self, count: int) -> None:
        """Note that `count` records have reached this stage."""
        self._reached = max(self._reached, count)
        while self._waiting and self._waiting[0][0] <= self._reached:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)


class Writer:
    """The threads of one journal, and the stages to wait for.

    counts:    whether a record is live and must be copied.
    is_sparse: whether the files hold so few live records that the oldest one should be removed.
    on_failed: receives the entries whose records were not written, in the event loop's thread.
    problem:   why records cannot be written now, or None.
    """

    def __init__(
        self,
        segments: Segments,
        counts: Callable[[Frame], bool],
        is_sparse: Callable[[], bool],
        on_failed: FailureHandler,
    ) -> None:
        self.problem: str | None = None
        self.written = Milestone()
        self.synced = Milestone()
        self.num_records = 0
        self._segments = segments
        self._counts = counts
        self._is_sparse = is_sparse
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._num_written = 0
        self._work = threading.Event()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._write_all, name="journal-write", daemon=True),
            threading.Thread(target=self._sync_all, name="journal-sync", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def put(self, frame: Frame) -> None:
        """Queue a record after all earlier ones."""
        self.num_records += 1
        self._queue.put(frame)

    async def until(self, milestone: Milestone) -> None:
        """Wait until all records so far have reached `milestone`, the disk has refused them, or it does not answer."""
        if self.problem is not None:
            return
        try:
            async with asyncio.timeout(STALL_S):
                await milestone.wait(self.num_records)
        except TimeoutError:
            self._fail(f"it has not answered for {STALL_S:g} s")

    async def close(self) -> None:
        """Write the remaining records, and end the threads."""
        self._queue.put(None)
        await asyncio.to_thread(self._threads[0].join)
        self._stopping.set()
        self._work.set()
        await asyncio.to_thread(self._threads[1].join)

    def _write_all(self) -> None:
        ending = False
        while not ending:
            group, ending = self._next_group()
            if not group:
                continue
            if self.problem is None:
                self._write(group)
            else:
                self._lose(group)
            self._num_written += len(group)
            self._loop.call_soon_threadsafe(self.written.reach, self._num_written)
            self._work.set()

    def _next_group(self) -> tuple[list[Frame], bool]:
        """Wait for at least one record; return the queued records, and whether they are the last."""
        item = self._queue.get()
        group: list[Frame] = []
        while item is not None:
            group.append(item)
            if len(group) >= GROUP or self._queue.empty():
                return group, False
            item = self._queue.get()
        return group, True

    def _write(self, group: list[Frame]) -> None:
        try:
            self._segments.append(b"".join(frame.data for frame in group))
        except Exception as error:  # if the thread ended, every waiting caller would hang
            self._fail(_why(error))
            self._lose(group)

    def _lose(self, group: list[Frame]) -> None:
        entries = {frame.entry for frame in group}
        self._loop.call_soon_threadsafe(self._on_failed, entries)

    def _fail(self, why: str) -> None:
        if self.problem is None:
            self.problem = why
            logger.error(
                "The request journal cannot be written (%s). What runs goes on, but would not survive the end of the server; "
                "new requests that it would keep are refused with 503 until it can be written again.",
                self.problem,
            )

    def _sync_all(self) -> None:
        while not self._stopping.is_set():
            if self.problem is None:
                self._work.wait()
                self._work.clear()
                self._sync()
                if not self._is_sparse():
                    self._stopping.wait(SYNC_S)
            elif not self._stopping.wait(RETRY_S):
                self._try_again()

    def _sync(self) -> None:
        # Read before the sync, which does not cover records that are written while it runs.
        count = self._num_written
        try:
            self._segments.sync()
            self._loop.call_soon_threadsafe(self.synced.reach, count)
            if self._is_sparse():
                self._segments.carry_on(self._counts)
                self._work.set()  # there may be more such files, and they follow at once
        except Exception as error:
            self._fail(_why(error))
            # Wakes the waiting callers, which then see `problem`.
            self._loop.call_soon_threadsafe(self.synced.reach, count)

    def _try_again(self) -> None:
        try:
            if self._is_sparse():
                self._segments.carry_on(self._counts)
            self._segments.begin_new_file()
        except Exception:
            self._loop.call_soon_threadsafe(self.synced.reach, self._num_written)
            return
        self.problem = None
        logger.warning("The request journal is written again.")


def _why(error: Exception) -> str:
    """Describe a failure of the disk, or of our code."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"{type(error).__name__}: {error}"
