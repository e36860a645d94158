"""The connection to a helper process: jobs go one way, answers come back in the same order.

Owns: the frames of messages on an event loop, the pending jobs, the clock of the first one. Never does: start or end a
process. Called by: `core_supervision.helpers.helper`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from core_supervision.helpers.messages import HEADER_BYTES, Mark, header

Buffer = bytes | bytearray | memoryview
JOINED_BYTES = 64 * 1024
"""Maximum size in bytes of a job that is sent in one piece; joining larger ones would hold up the event loop."""


class HelperEnded(Exception):
    """The process ended before it answered, or did not start.

    began: whether it was working on this job, or has never answered anything since it was started.
    exit_code: of the process, negative for a signal.
    timed_out: whether it was killed because the job took too long.
    """

    def __init__(self, reason: str, *, began: bool = False, exit_code: int = 0, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.began = began
        self.exit_code = exit_code
        self.timed_out = timed_out


@dataclass(slots=True, eq=False)
class _Job:
    """A pending job.

    answer: for the caller, who may have left. left: seconds that it may still work.
    release: called once the process has left the job. began: whether the process works on it and loads nothing for it.
    """

    answer: asyncio.Future[memoryview]
    left: float
    release: Callable[[], None]
    began: bool


class HelperLink(asyncio.Protocol):
    """One connection to one process.

    load_seconds: limit of the time in which a job waits for something to be loaded. None: its own time counts at once;
        else from the process's report on.
    on_idle: called when there is no job left.
    on_end: called with this link when the process has closed its end, or was asked to end.
    end_process: kills the process.
    """

    def __init__(
        self,
        load_seconds: float | None,
        on_idle: Callable[[HelperLink], None],
        on_end: Callable[[HelperLink], None],
        end_process: Callable[[], None],
    ) -> None:
        self.is_open = True
        self.is_retired = False
        self.has_answered = False
        self._load_seconds = load_seconds
        self._timed_out = False
        self._on_idle = on_idle
        self._on_end = on_end
        self._end_process = end_process
        self._jobs: deque[_Job] = deque()
        self._received = bytearray()
        self._loop = asyncio.get_running_loop()
        self._clock: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._is_loading = False
        self._transport: asyncio.Transport | None = None

    @property
    def num_jobs(self) -> int:
        """Return the number of unanswered jobs."""
        return len(self._jobs)

    def ask(self, message: Sequence[Buffer], seconds: float, release: Callable[[], None]) -> asyncio.Future[memoryview]:
        """Send a job; return the future answer, which may fail with HelperEnded.

        message: its parts. seconds: time limit once earlier jobs are done.
        """
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        if not self.is_open:  # the process ended while the caller waited for its start
            release()
            answer.set_exception(HelperEnded("it ended at its start", began=not self.is_retired))
            return answer
        self._jobs.append(_Job(answer, seconds, release, began=self._load_seconds is None))
        if len(self._jobs) == 1:
            self._begin_first()
            self._set_clock()
        self.send(message)
        return answer

    def send(self, message: Sequence[Buffer]) -> None:
        """Send a message."""
        assert self._transport is not None, "a link is used once it is connected"
        num_bytes = sum(map(len, message))
        parts = [header(num_bytes), *message]
        for part in [b"".join(parts)] if num_bytes <= JOINED_BYTES else parts:
            self._transport.write(part)

    def close(self) -> None:
        """Accept no more jobs, and close the connection."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def fail(self, exit_code: int) -> None:
        """Fail all pending jobs because the process has ended."""
        first = not self.is_retired  # a process that wanted to be replaced began none of them
        jobs, self._jobs = self._jobs, deque()
        how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        for job in jobs:
            if not job.answer.done():
                ended = HelperEnded(
                    how, began=first and job.began, exit_code=exit_code, timed_out=first and self._timed_out
                )
                job.answer.set_exception(ended)
            job.release()
            first = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport. Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take some bytes of messages. Called by the loop."""
        self._received += data
        while len(self._received) >= HEADER_BYTES:
            end = HEADER_BYTES + int.from_bytes(self._received[:HEADER_BYTES], "little")
            if len(self._received) < end:
                return
            received, self._received = self._received, self._received[end:]
            # The view shares memory with `received`.
            self._take(Mark(received[HEADER_BYTES]), memoryview(received)[HEADER_BYTES + 1 : end])

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end of the connection, by the process or by us. Called by the loop."""
        self.is_open = False
        self._stop_clock()
        self._on_end(self)

    def _take(self, mark: Mark, content: memoryview) -> None:
        if mark in (Mark.LOADING, Mark.WORKING):
            self._note(is_loading=mark == Mark.LOADING)
            return
        self.has_answered = True
        job = self._jobs.popleft()
        self._begin_first()
        if mark == Mark.LAST:
            self.is_open = False
            self.is_retired = True
        if not job.answer.done():
            job.answer.set_result(content)
        job.release()
        if not self._jobs:
            self._stop_clock()
            self._on_idle(self)

    def _begin_first(self) -> None:
        """Begin the time of the first job."""
        self._since = self._loop.time()
        self._is_loading = self._load_seconds is not None

    def _note(self, *, is_loading: bool) -> None:
        """Note that the process loads something for the first job, or works on it."""
        job = self._jobs[0]
        now = self._loop.time()
        if not self._is_loading:
            job.left -= now - self._since
        job.began = not is_loading
        self._since, self._is_loading = now, is_loading
        self._set_clock()

    def _set_clock(self) -> None:
        self._stop_clock()
        self._clock = self._loop.call_later(max(0.0, self._left()), self._check_clock)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _left(self) -> float:
        """Return the seconds that are left to the first job, or to what is loaded for it."""
        limit = self._load_seconds if self._is_loading else self._jobs[0].left
        assert limit is not None
        return self._since + limit - self._loop.time()

    def _check_clock(self) -> None:
        """Kill the process if the first job has used up its time; the one for which the clock was set may be done."""
        if self._left() > 0:
            self._set_clock()
        else:
            self._timed_out = True
            self.is_open = False
            self._end_process()
