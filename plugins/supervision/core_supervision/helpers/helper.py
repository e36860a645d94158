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
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import NamedTuple

from core.processes import child_environment, python_command
from core_supervision.helpers.link import Buffer, HelperEnded, HelperLink

logger = logging.getLogger("core.helpers")

EXIT_SECONDS = 0.5
"""Seconds for a process to exit by itself once its connection is closed; its exit code says why."""
FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 5.0
"""Limits of the seconds before another start, after processes that failed by themselves without any answer."""


@dataclass(frozen=True, slots=True)
class Lane:
    """The settings of one helper process.

    module:       run in the process.
    task:         what it does, as the end of "the process that".
    job_seconds:  time limit of one job, after which the process is killed.
    load_seconds: see `HelperLink`.
    idle_seconds: time without a job after which the process is ended; None: it stays, and is replaced at once when it
        wants to be.
    most_jobs:    maximum number of jobs that are sent to it at once.
    niceness:     of the process, beyond this one's.
    max_attempts: maximum number of processes that one job is sent to: each has several jobs, and any of them may have
        ended it.
    max_ended:    maximum number of processes that may end while they work on one job; a process may also have died long
        before.
    fatal_exit:   exit code that only the job at work can have caused; it is not tried again.
    """

    module: str
    task: str
    job_seconds: float
    load_seconds: float | None = None
    idle_seconds: float | None = None
    most_jobs: int = 1
    niceness: int = 0
    max_attempts: int = 8
    max_ended: int = 2
    fatal_exit: int | None = None


class Spawned(NamedTuple):
    """A process that waits for its first message, and this end of its socket."""

    process: subprocess.Popen[bytes]
    connection: socket.socket

    def end(self) -> None:
        """End a process that was not needed."""
        self.process.kill()
        self.connection.close()


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
        self._start().add_done_callback(self._note_failure)

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

    def _note_failure(self, started: asyncio.Task[HelperLink]) -> None:
        """Log the failure of a start that no job waits for: the next job starts another process."""
        if not started.cancelled() and started.exception() is not None:
            logger.warning("The process that %s does not start (%s).", self.lane.task, started.exception())


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


def spawn(lane: Lane) -> Spawned:
    """Start the process of a lane, which waits for its first message. Raises OSError.

    A thread waits for the process, so that a helper that ends while it is idle does not stay a zombie.
    """
    spawned = spawn_on_socket(lane.module, str(lane.niceness), output=subprocess.DEVNULL)
    threading.Thread(target=spawned.process.wait, name="helper-wait", daemon=True).start()
    return spawned


def spawn_on_socket(module: str, *words: str, fds: tuple[int, ...] = (), output: int | None = None) -> Spawned:
    """Start a module with its end of a socket as the first word. Raises OSError.

    fds: descriptors that it inherits. output: its standard output and error; None: those of this process.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                python_command(module, str(theirs.fileno()), *words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,  # Ctrl-C must reach only the parent, which ends the process.
                env=child_environment(),
                pass_fds=(theirs.fileno(), *fds),
            )
        except BaseException:
            ours.close()
            raise
    return Spawned(process, ours)
