"""A helper process that prepares requests, from the server's side.

Owns: its start on first use, its jobs, its end when it idles, hangs or has grown. Never does: the work
(`core_apis.prepare.process` is the other end). Called by: `core_apis.prepare.preparer`.

It is a process because decoding JSON and rendering templates hold the interpreter's lock: in a thread they would stop
every stream, and nothing could end a template that computes for ever. The process's memory is returned to the system
when it ends.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
from dataclasses import dataclass
from typing import Any

import msgspec

from core.api.errors import RequestError
from core_apis.body_kinds import BodyKind, Buffer
from core_apis.prepare.helper_link import HelperEnded, HelperLink
from core_apis.prepare.prepared import PreparationSettings
from core_apis.prepare.process import Answer, Start, job_header
from core_apis.prepare.render_limits import END_SIGNAL
from core_grammars.helper_process import header, spawn_helper
from core_tokens.tokenizer import Tokenizer

logger = logging.getLogger("core_apis")

MODULE = "core_apis.prepare.process"
MAX_ATTEMPTS = 8
"""Maximum number of processes that one job is sent to: each has several jobs, and any of them may have ended it."""
MAX_ENDED = 2
"""Maximum number of processes that may end while they work on one job; a process may also have died long before."""
EXIT_SECONDS = 0.5
"""Seconds for a process to exit by itself once its connection is closed; its exit code says why."""
SHORT_ANSWER = 32 * 1024
"""Maximum size in bytes of a result that is decoded on the event loop, within a millisecond."""
JOINED_BYTES = 64 * 1024
"""Maximum size in bytes of a body that is sent with its header in one piece; joining larger ones would hold up the
event loop.
"""


@dataclass(frozen=True, slots=True)
class Lane:
    """The settings of one helper process.

    most_jobs:    maximum number of jobs that are sent to it at once.
    job_seconds:  time limit of one job, after which the process is killed.
    idle_seconds: time without a job after which the process is ended; None: it stays, and is replaced at once when it
        ends.
    niceness:     of the process, beyond the server's.
    """

    most_jobs: int
    job_seconds: float
    idle_seconds: float | None
    niceness: int


class PreparationHelper:
    """The helper process of one lane of a server. The process is started with the first job.

    process: the running one; None: there is none.
    """

    def __init__(self, settings: PreparationSettings, tokenizer: Tokenizer, lane: Lane) -> None:
        self.lane = lane
        self._settings = settings
        self._tokenizer = tokenizer
        self._places = asyncio.Semaphore(lane.most_jobs)
        self._link: HelperLink | None = None
        self._starting: asyncio.Task[HelperLink] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def run(self, kind: BodyKind, data: Buffer) -> Any:
        """Prepare a body of `kind` in the process. Raises RequestError."""
        head = job_header(kind.name, len(data))
        message: list[Buffer] = [head + data] if len(data) <= JOINED_BYTES else [head, data]
        answer = await self._answer(message)
        if answer.refusal is not None:
            if answer.refusal.details:
                logger.error("A request could not be prepared.\n%s", answer.refusal.details)
            raise answer.refusal.as_error()
        if answer.num_bytes > SHORT_ANSWER:
            return await asyncio.to_thread(answer.decoded, kind.result)
        return answer.decoded(kind.result)

    async def close(self) -> None:
        """End the process for good."""
        self._closed = True
        if self._starting is not None:
            await asyncio.wait({self._starting})
        if self._link is not None:
            self._link.close()
        while self._link is not None or self._ending:
            await asyncio.sleep(0)
            if self._ending:
                await asyncio.wait(self._ending)

    async def _answer(self, message: list[Buffer]) -> Answer:
        """Return the answer of the process, or of the next one if it ended meanwhile. Raises RequestError."""
        num_ended = 0
        for _ in range(MAX_ATTEMPTS):
            link = await self._place()
            try:
                return await link.ask(message, self.lane.job_seconds, self._places.release)
            except HelperEnded as ending:
                if ending.timed_out:
                    raise self._too_slow() from None
                if ending.began and ending.exit_code == -END_SIGNAL:
                    raise _too_long_operation() from None
                num_ended += ending.began
                if num_ended == MAX_ENDED:
                    break
        raise RequestError(
            "The process that reads requests ended; try again, or send less at once.",
            status=503,
            code="server_busy",
            retry_after=1,
        )

    async def _place(self) -> HelperLink:
        """Reserve a place for one job, and return the link to the process."""
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
        if self._closed:
            raise _no_process("the server ends")
        try:
            start = await asyncio.to_thread(self._first_message)
            process, connection = await asyncio.to_thread(spawn_helper, MODULE)
        except OSError as error:
            raise _no_process(str(error)) from None
        link = await self._connect(process, connection)
        link.send(header(len(start)))
        link.send(start)
        self.process, self._link = process, link
        return link

    def _first_message(self) -> bytes:
        """Return the message with the process's settings and tokenizer, many MB with a large tokenizer."""
        return msgspec.msgpack.encode(Start(self._settings, self._tokenizer.snapshot, self.lane.niceness))

    async def _connect(self, process: subprocess.Popen[bytes], connection: socket.socket) -> HelperLink:
        def on_end(link: HelperLink) -> None:
            self._end(link, process)

        def protocol() -> HelperLink:
            return HelperLink(self._on_idle, on_end, process.kill)

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
        task = asyncio.ensure_future(_reap(link, process))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        # Only a process that retired is replaced at once; one that died is replaced by the next job.
        if is_current and link.is_retired and self.lane.idle_seconds is None and not self._closed:
            self._start().add_done_callback(_note_failure)

    def _too_slow(self) -> RequestError:
        return RequestError(
            f"The request could not be read within {self.lane.job_seconds:g} s; send less at once.",
            code="too_much_work",
        )


async def _reap(link: HelperLink, process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that has closed its connection, and report to its jobs how it ended."""
    try:
        exit_code = await asyncio.to_thread(process.wait, EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        exit_code = await asyncio.to_thread(process.wait)
    if link.num_jobs:
        logger.warning("The process that prepares requests ended (exit code %d); another is started.", exit_code)
    link.fail(exit_code)


def _too_long_operation() -> RequestError:
    return RequestError(
        "The chat template was stopped, since one operation in it takes too long for these messages; send fewer or shorter "
        "ones, or start the server with another --chat-template.",
        param="messages",
        code="too_much_work",
    )


def _no_process(reason: str) -> RequestError:
    return RequestError(
        f"The process that prepares requests does not start ({reason}); try again.",
        status=503,
        code="server_busy",
        retry_after=1,
    )


def _note_failure(started: asyncio.Task[HelperLink]) -> None:
    """Ignore the failure of a start that no job waits for: the next job starts another process."""
    if not started.cancelled() and started.exception() is not None:
        logger.warning("The process that prepares requests does not start (%s).", started.exception())
