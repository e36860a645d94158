"""A helper process from its parent's side.

Owns: its start on first use, its jobs, its end when it idles, hangs or has grown, and the next one. Never does: the work
(`core_supervision.helpers.child` is the other end), or phrase a refusal. Called by: what prepares requests and compiles
grammars.

It is a process because the work runs on input that is not trusted: a hang, a crash or exhausted memory ends with it, and
nothing else waits for the interpreter's lock meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
from collections.abc import Callable

from core_supervision.helpers.lane import Lane, Spawned, spawn
from core_supervision.helpers.link import Buffer, HelperEnded, HelperLink

logger = logging.getLogger("core.helpers")

EXIT_SECONDS = 0.5
"""Seconds for a process to exit by itself once its connection is closed; its exit code says why."""
FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 5.0
"""Limits of the seconds before another start, after processes that failed by themselves without any answer."""


class Helper:
    """The helper process of one lane. The process is started with the first job, or by `start`.

    first: returns the first message, which sets a process up; called in a thread. None: there is none.

    process: the running one; None: there is none.
    """

    def __init__(self, lane: Lane, first: Callable[[], bytes] | None = None) -> None:
        self.lane = lane
        self.process: subprocess.Popen[bytes] | None = None
        self._first = first
        self._spawned: Spawned | None = None
        self._places = asyncio.Semaphore(lane.most_jobs)
        self._link: HelperLink | None = None
        self._starting: asyncio.Task[HelperLink] | None = None
        self._num_failures = 0
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def ask(self, *message: Buffer) -> memoryview:
        """Return the answer of the process to a job, or of the next one if it ended meanwhile. Raises HelperEnded."""
        num_ended = 0
        for attempt in range(1, self.lane.max_attempts + 1):
            link = await self._place()
            try:
                return await link.ask(message, self.lane.job_seconds, self._places.release)
            except HelperEnded as ending:
                num_ended += ending.began
                is_fatal = ending.began and ending.exit_code == self.lane.fatal_exit
                is_tried = attempt == self.lane.max_attempts or num_ended == self.lane.max_ended
                if ending.timed_out or is_fatal or is_tried or self._closed:
                    raise
        raise AssertionError("unreachable")

    def start(self, spawned: Spawned | None = None) -> None:
        """Start the process before the first job, in the background. spawned: one of this lane that is there already."""
        self._spawned = spawned
        self._start().add_done_callback(self._note_start)

    def rest(self) -> None:
        """End the process unless it has jobs; the next job starts another one."""
        if self._link is not None and not self._link.num_jobs:
            self._link.close()

    async def close(self) -> None:
        """End the process for good; pending jobs fail."""
        self._closed = True
        if self._starting is not None:
            await asyncio.wait({self._starting})
        if self._spawned is not None:
            self._spawned.end()
        if self._link is not None:
            self._link.close()
        while self._link is not None or self._ending:
            await asyncio.sleep(0)
            if self._ending:
                await asyncio.wait(self._ending)

    async def _place(self) -> HelperLink:
        """Reserve a place for one job, and return the link to the process. Raises HelperEnded if there is none."""
        await self._places.acquire()
        try:
            if self._link is not None and self._link.is_open:
                if self._idle is not None:
                    self._idle.cancel()
                    self._idle = None
                return self._link
            return await asyncio.shield(self._start())  # a caller that leaves must not cancel the start for the others
        except BaseException:
            self._places.release()
            raise

    def _start(self) -> asyncio.Task[HelperLink]:
        """Return the pending start, or begin a new one."""
        if self._starting is None or self._starting.done():
            self._starting = asyncio.ensure_future(self._started())
        return self._starting

    async def _started(self) -> HelperLink:
        if self._num_failures:
            await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (self._num_failures - 1), LAST_PAUSE_S))
        if self._closed:
            raise HelperEnded("the server ends")
        spawned, self._spawned = self._spawned, None
        try:
            message = None if self._first is None else await asyncio.to_thread(self._first)
            if spawned is None:
                spawned = await asyncio.to_thread(spawn, self.lane)
        except OSError as error:
            raise HelperEnded(str(error)) from None
        process, connection = spawned
        link = await self._connect(process, connection)
        if message is not None:
            link.send([message])
        self.process, self._link = process, link
        return link

    async def _connect(self, process: subprocess.Popen[bytes], connection: socket.socket) -> HelperLink:
        def on_end(link: HelperLink) -> None:
            self._end(link, process)

        def protocol() -> HelperLink:
            return HelperLink(self.lane.load_seconds, self._on_idle, on_end, process.kill)

        _, link = await asyncio.get_running_loop().create_connection(protocol, sock=connection)
        return link

    def _on_idle(self, link: HelperLink) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self.lane.idle_seconds is not None:
            self._idle = asyncio.get_running_loop().call_later(self.lane.idle_seconds, self._on_idle_for_long, link)

    def _on_idle_for_long(self, link: HelperLink) -> None:
        if not link.num_jobs:
            link.close()

    def _end(self, link: HelperLink, process: subprocess.Popen[bytes]) -> None:
        """The connection is closed: end the process, and fail its jobs."""
        is_current = link is self._link
        if is_current:
            self._link = self.process = None
        task = asyncio.ensure_future(self._reap(link, process))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        # Only a process that retired is replaced at once; one that died is replaced by the next job.
        if is_current and link.is_retired and self.lane.idle_seconds is None and not self._closed:
            self.start()

    async def _reap(self, link: HelperLink, process: subprocess.Popen[bytes]) -> None:
        """Wait for a process that has closed its connection, and report to its jobs how it ended."""
        try:
            exit_code = await asyncio.to_thread(process.wait, EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            exit_code = await asyncio.to_thread(process.wait)
        # A signal is no failure of its own: limits end processes that way.
        self._num_failures = self._num_failures + 1 if exit_code > 0 and not link.has_answered else 0
        if link.num_jobs:
            logger.warning("The process that %s ended (exit code %d); another is started.", self.lane.task, exit_code)
        link.fail(exit_code)

    def _note_start(self, started: asyncio.Task[HelperLink]) -> None:
        """Log the failure of a start that no job waits for: the next job starts another process."""
        if started.cancelled():
            return
        if started.exception() is not None:
            logger.warning("The process that %s does not start (%s).", self.lane.task, started.exception())
        elif not started.result().num_jobs:
            self._on_idle(started.result())
