"""The request journal over files in memory, and streams that go on in the server after a death.

Owns: `JournalFiles` (what outlives servers, and its failures), `SimWriter` (the journal's writer without threads), `Streams`.
Never does: read or write records (the product's journal does). Called by: a server that has its engine alone.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from core.api.errors import RequestError
from core_apis.durable.recorder import RequestRecorder
from core_apis.journal.journal import Journal, now
from core_apis.journal.reader import Entry
from core_apis.journal.records import Accepted, Ended, Frame, accepted_frame
from core_apis.journal.segments import Segments
from core_apis.journal.writer import RETRY_S, SYNC_S, FailureHandler, Milestone, Writer
from tests.simulation.answers import Answer
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.api_process import Front

MAX_BYTES = 1 << 20


class SimFile:
    """One file. Its public part is what the journal uses of `Path`."""

    def __init__(self, files: JournalFiles, number: int) -> None:
        self.stem = f"{number:012d}"
        self.data = bytearray()
        self._files = files

    def stat(self) -> SimpleNamespace:
        return SimpleNamespace(st_size=len(self.data))

    def read_bytes(self) -> bytes:
        return bytes(self.data)

    def unlink(self) -> None:
        self._files.check("journal.unlink")
        self._files.present.remove(self)


class JournalFiles:
    """The directory, and the part of `os` by which its files are written.

    process:    the server that has it open.
    has_failed: whether a journal has given records up, such as after the machine stood still.
    """

    def __init__(self, point: Callable[[str], None]) -> None:
        self.process = Process("nobody")
        self.present: list[SimFile] = []
        self.has_failed = False
        self._point = point
        self._open: list[SimFile] = []

    def check(self, place: str) -> None:
        """Raise OSError where the disk fails, or when the writing process is no more."""
        if not self.process.alive:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._point(place)

    def files(self) -> list[SimFile]:
        return list(self.present)

    def create(self, number: int) -> tuple[SimFile, int]:
        self.check("journal.create")
        file = SimFile(self, number)
        self.present.append(file)
        self._open.append(file)
        return file, len(self._open) - 1

    def write(self, descriptor: int, data: bytes) -> int:
        """All of it, or half of it and then an error."""
        try:
            self.check("journal.write")
        except OSError:
            if self.process.alive:
                self._open[descriptor].data += bytes(data)[: len(data) // 2]
            raise
        self._open[descriptor].data += bytes(data)
        return len(data)

    def ftruncate(self, descriptor: int, size: int) -> None:
        if self.process.alive:
            del self._open[descriptor].data[size:]

    def fsync(self, descriptor: int) -> None:
        self.check("journal.sync")

    def sync(self) -> None:
        self.check("journal.sync")

    def close(self, *descriptor: int) -> None:
        """A file, or the directory."""


class SimWriter(Writer):
    """The journal's writer: what its threads do is done by the event loop, a little later."""

    def __init__(
        self,
        segments: Segments,
        counts: Callable[[Frame], bool],
        is_sparse: Callable[[], bool],
        on_failed: FailureHandler,
    ) -> None:
        self.problem = None
        self.written = Milestone()
        self.synced = Milestone()
        self.num_records = 0
        self._segments = segments
        self._counts = counts
        self._is_sparse = is_sparse
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._num_written = 0
        self._work = asyncio.Event()  # type: ignore[assignment]
        self._waiting: list[Frame] = []
        self._tasks = [asyncio.create_task(self._write_on()), asyncio.create_task(self._sync_on())]
        self._some = asyncio.Event()

    def put(self, frame: Frame) -> None:
        self.num_records += 1
        self._waiting.append(frame)
        self._some.set()

    async def close(self) -> None:
        self._write_group()
        if self.problem is None:
            self._sync()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _fail(self, why: str) -> None:
        super()._fail(why)
        files: Any = self._segments._directory
        files.has_failed = True

    async def _write_on(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            await asyncio.sleep(0.001)
            self._write_group()

    def _write_group(self) -> None:
        group, self._waiting = self._waiting, []
        if not group:
            return
        if self.problem is None:
            self._write(group)
        else:
            self._lose(group)
        self._num_written += len(group)
        self._loop.call_soon_threadsafe(self.written.reach, self._num_written)
        self._work.set()

    async def _sync_on(self) -> None:
        while True:
            if self.problem is None:
                await self._work.wait()  # type: ignore[misc]
                self._work.clear()
                self._sync()
                await asyncio.sleep(SYNC_S)
            else:
                await asyncio.sleep(RETRY_S)
                self._try_again()


class Streams:
    """The streams of one server that outlive it."""

    def __init__(self, front: Front) -> None:
        front.world.journal_files.process = front.process
        self.journal = Journal("journal", MAX_BYTES)
        self.journal.start()
        self._front = front

    def go_on(self) -> None:
        """Run what an earlier server left."""
        answers = {answer.name: answer for answer in self._front.world.answers}
        for entry in self.journal.entries:
            log = self.journal.go_on(entry)
            if entry.accepted is None:
                continue
            answer = answers.get(entry.accepted.id)
            if answer is None or answer.left:
                log.dropped()
                continue
            answer.begin_again(RequestRecorder(log, entry))
            answer.task = self._front.spawn(self._front.ask, answer.event, answer)

    def accept(self, answer: Answer) -> None:
        """Keep a request. Raises RequestError."""
        if answer.records is not None:
            return
        accepted = Accepted("completion", answer.name, b"", 0, now(), "", "", msgspec.msgpack.encode(answer.event))
        answer.records = RequestRecorder(self.journal.accept(accepted_frame(self.journal.next_number(), accepted)))

    def end(self, answer: Answer) -> None:
        """It has ended, or its reader has gone."""
        if answer.records is None or not self._front.process.alive:
            return
        if answer.left:
            answer.records.log.dropped()
        elif not isinstance(answer.error, RequestError) and answer.error is not None:
            return  # the engine is dead for good: the next server goes on
        else:
            answer.records.log.ended(Ended("completion", answer.name, b"", now(), b""))

    def left(self) -> list[Entry]:
        """Entries that neither ended nor were dropped, as the next server would find them."""
        from core_apis.journal.reader import read

        contents = read(self._front.world.journal_files.files())  # type: ignore[arg-type]
        return [entry for entry in contents.entries if entry.ended is None]
