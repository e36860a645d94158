"""The connection to the process that prepares requests: jobs go one way, answers come back in the same order.

Owns: the frames of messages on an event loop, the pending jobs, the clock of the first one. Never does: start or end a
process. Called by: `core_apis.prepare.helper`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, cast

import msgspec

from core_apis.body_kinds import Buffer
from core_apis.prepare.process import Answer
from core_grammars.helper_process import HEADER_BYTES


class HelperEnded(Exception):
    """The process ended before it answered.

    began: whether it was working on this job, or has never answered anything since it was started.
    exit_code: of the process, negative for a signal.
    timed_out: whether it was killed because the job took too long.
    """

    def __init__(self, *, began: bool, exit_code: int = 0, timed_out: bool = False) -> None:
        super().__init__(f"exit code {exit_code}")
        self.began = began
        self.exit_code = exit_code
        self.timed_out = timed_out


class _Job(NamedTuple):
    """A pending job.

    answer: for the caller, who may have left. seconds: see `ask`. release: called once the process has left the job.
    """

    answer: asyncio.Future[Answer]
    seconds: float
    release: Callable[[], None]


class HelperLink(asyncio.Protocol):
    """One connection to one process.

    on_idle: called when there is no job left.
    on_end: called with this link when the process has closed its end, or was asked to end.
    end_process: kills the process.
    """

    def __init__(
        self,
        on_idle: Callable[[HelperLink], None],
        on_end: Callable[[HelperLink], None],
        end_process: Callable[[], None],
    ) -> None:
        self.is_open = True
        self.is_retired = False
        self.timed_out = False
        self._on_idle = on_idle
        self._on_end = on_end
        self._end_process = end_process
        self._jobs: deque[_Job] = deque()
        self._received = bytearray()
        self._answers = msgspec.msgpack.Decoder(Answer)
        self._loop = asyncio.get_running_loop()
        self._clock: asyncio.TimerHandle | None = None
        self._first_since = 0.0
        self._transport: asyncio.Transport | None = None

    @property
    def num_jobs(self) -> int:
        """Return the number of unanswered jobs."""
        return len(self._jobs)

    def ask(self, message: list[Buffer], seconds: float, release: Callable[[], None]) -> asyncio.Future[Answer]:
        """Send a job; return the future answer, which may fail with HelperEnded.

        seconds: time limit once earlier jobs are done.
        """
        assert self._transport is not None, "a link is used once it is connected"
        answer: asyncio.Future[Answer] = self._loop.create_future()
        if not self.is_open:  # the process ended while the caller waited for its start
            release()
            answer.set_exception(HelperEnded(began=not self.is_retired))
            return answer
        if not self._jobs:
            self._first_since = self._loop.time()
            self._clock = self._loop.call_later(seconds, self._check_clock)
        self._jobs.append(_Job(answer, seconds, release))
        for part in message:
            self._transport.write(part)
        return answer

    def send(self, data: bytes) -> None:
        """Send a message that is no job."""
        assert self._transport is not None, "a link is used once it is connected"
        self._transport.write(data)

    def close(self) -> None:
        """Accept no more jobs, and close the connection."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def fail(self, exit_code: int) -> None:
        """Fail all pending jobs because the process has ended."""
        first = not self.is_retired  # a process that wanted to be replaced began none of them
        jobs, self._jobs = self._jobs, deque()
        for job in jobs:
            if not job.answer.done():
                ended = HelperEnded(began=first, exit_code=exit_code, timed_out=first and self.timed_out)
                job.answer.set_exception(ended)
            job.release()
            first = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport. Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take some bytes of answers. Called by the loop."""
        self._received += data
        while len(self._received) >= HEADER_BYTES:
            end = HEADER_BYTES + int.from_bytes(self._received[:HEADER_BYTES], "little")
            if len(self._received) < end:
                return
            received, self._received = self._received, self._received[end:]
            # The view shares memory with `received`.
            self._answer(self._answers.decode(memoryview(received)[HEADER_BYTES:end]))

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end of the connection, by the process or by us. Called by the loop."""
        self.is_open = False
        self._stop_clock()
        self._on_end(self)

    def _answer(self, answer: Answer) -> None:
        job = self._jobs.popleft()
        # The time of the next job counts from here.
        self._first_since = self._loop.time()
        if answer.last:
            self.is_open = False
            self.is_retired = True
        if not job.answer.done():
            job.answer.set_result(answer)
        job.release()
        if not self._jobs:
            self._stop_clock()
            self._on_idle(self)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _check_clock(self) -> None:
        """Kill the process if the job that was first when the clock was set has used up its time.

        It may have been answered since.
        """
        left = self._first_since + self._jobs[0].seconds - self._loop.time()
        if left > 0:
            self._clock = self._loop.call_later(left, self._check_clock)
        else:
            self.timed_out = True
            self.is_open = False
            self._end_process()
