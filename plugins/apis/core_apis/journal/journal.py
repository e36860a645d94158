"""A journal: accepted requests and their outputs, in a directory that outlives the server.

Owns: `Journal` (its size, which records are still live, who may have more) and `EntryLog` (the records of one request).
Never does: know what bodies mean, or run requests. Called by: the server (`core_apis.durable`).
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Sequence

import msgspec

from core.api.errors import RequestError, UserError
from core.api.messages import EngineOutput
from core_apis.journal.directory import JournalDirectory
from core_apis.journal.reader import Entry, read
from core_apis.journal.records import Begun, Ended, FileHead, Frame, Given, Kind, Shown, framed
from core_apis.journal.segments import Segments
from core_apis.journal.writer import Writer

logger = logging.getLogger(__name__)

FILES = 16
"""Approximate number of files of a journal of full size."""
SMALLEST_FILE = 1 << 16
SALT_BYTES = 32
RETRY_AFTER_S = 5

_encode = msgspec.msgpack.Encoder().encode


class EntryLog:
    """The records of one request, as they come.

    number:  of the entry.
    is_lost: whether a record could not be written, so later ones would not count.
    """

    def __init__(self, journal: Journal, number: int, num_records: int) -> None:
        self.number = number
        self.is_lost = False
        self._journal = journal
        self._num_records = num_records

    @property
    def is_kept(self) -> bool:
        """Whether the journal still has the entry."""
        return self._journal.has(self.number)

    def begun(self, prompt: int, seed: int) -> None:
        """Record that a prompt of the request is about to enter the engine."""
        self._add(Kind.BEGUN, Begun(prompt, seed))

    def given(self, prompt: int, outputs: Sequence[EngineOutput]) -> None:
        """Record a prompt's outputs of one step."""
        plain: list[EngineOutput] = []
        for output in outputs:
            plain.append(msgspec.structs.replace(output, request_id="", handle=0))
        self._add(Kind.GIVEN, Given(prompt, plain))

    def shown(self, prompt: int) -> None:
        """Record that an output of a prompt, one of several, is about to be shown."""
        self._add(Kind.SHOWN, Shown(prompt))

    def ended(self, ended: Ended) -> None:
        """Record that the request has ended; `ended` replaces all earlier records."""
        self._journal.end(self, ended, self._num_records)

    def dropped(self) -> None:
        """Drop the request's entry. A second call does nothing."""
        self._journal.drop(self.number)

    async def accepted(self) -> None:
        """Wait until the disk has all records so far. Raises RequestError (503) if it refused them."""
        await self._journal.synced()
        problem = self._journal.trouble
        if self.is_lost or problem is not None:
            self.dropped()
            raise unavailable(problem or "the disk refuses it")

    def _add(self, kind: Kind, payload: Begun | Given | Shown) -> None:
        if not self.is_lost:
            self._journal.add(self, framed(self.number, self._num_records, kind, _encode(payload)))
            self._num_records += 1


class Journal:
    """A journal. Open it, take its `entries`, `start` it in the event loop, and `close` it.

    path:      of the directory. max_bytes: limit on its files together, except for entries that run when it is reached.
    entries:   the entries in it when it was opened.
    salt:      keys the digests of tenants.
    epoch:     how often the journal was opened.

    Opening raises UserError if the directory cannot be used.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._directory = JournalDirectory(path)
        try:
            contents = read(self._directory.files())
            known = contents.head or FileHead(secrets.token_bytes(SALT_BYTES), 0)
            self.salt, self.epoch = known.salt, known.epoch + 1
            head = FileHead(self.salt, self.epoch)
            self._file_size = max(SMALLEST_FILE, max_bytes // FILES)
            self._segments = Segments(self._directory, head, self._file_size)
        except OSError as error:
            self._directory.close()
            raise UserError(
                f"--request-journal {path}: {error.strerror or error}; make room, or name another directory."
            ) from None
        self.entries = contents.entries
        self._next_entry = contents.next_entry
        self._logs: dict[int, EntryLog] = {}
        self._live: dict[int, int] = {entry.number: entry.num_bytes for entry in contents.entries}
        self._ended: dict[int, None] = {}
        for entry in contents.entries:
            if entry.ended is not None:
                self._ended[entry.number] = None
        self._num_bytes = sum(self._live.values())
        self._writer: Writer | None = None
        self._closed = False

    def start(self) -> None:
        """Begin to write. Call it in the event loop that will use the journal."""
        self._writer = Writer(self._segments, self._counts, self._is_sparse, self._on_failed)

    async def close(self) -> None:
        """Write the remaining records and release the directory. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._writer is not None:
            await self._writer.close()
        try:
            self._segments.close()
        except OSError as error:
            logger.error("The last records of the request journal did not reach the disk: %s.", error)
        self._directory.close()

    @property
    def problem(self) -> str | None:
        """Return why no new request can be kept now; None: it can."""
        if self.trouble is not None:
            return self.trouble
        if self._num_bytes > self.max_bytes // 2:
            return f"it is full of requests that run (--request-journal-size {self.max_bytes})"
        return None

    @property
    def trouble(self) -> str | None:
        """Return why nothing can be written now; None: it can."""
        if self._writer is None or self._writer.problem is None:
            return None
        return f"the disk refuses it: {self._writer.problem}"

    def check(self) -> None:
        """Raise RequestError (503) if no new request can be kept now."""
        problem = self.problem
        if problem is not None:
            raise unavailable(problem)

    def next_number(self) -> int:
        """Return the number for a new entry, whose first record may then be made in a thread."""
        self._next_entry += 1
        return self._next_entry - 1

    def accept(self, frame: Frame) -> EntryLog:
        """Keep a request from now on. Raises RequestError (503) if it cannot be kept. frame: from `accepted_frame`."""
        self.check()
        log = self._log(frame.entry, 1)
        self._live[log.number] = 0
        self.add(log, frame)
        return log

    def go_on(self, entry: Entry) -> EntryLog:
        """Continue the records of an entry that was in the journal."""
        return self._log(entry.number, entry.num_records)

    def keep(self, ended: Ended) -> EntryLog:
        """Keep the outcome of a request that was not kept while it ran; do nothing if it cannot be kept."""
        log = self._log(self.next_number(), 0)
        if self.problem is None:
            self._live[log.number] = 0
            log.ended(ended)
        return log

    def add(self, log: EntryLog, frame: Frame) -> None:
        """Append a record of an entry that is still kept."""
        if log.number in self._live:
            self._live[log.number] += len(frame.data)
            self._num_bytes += len(frame.data)
            self._put(frame)

    def end(self, log: EntryLog, ended: Ended, number: int) -> None:
        """Replace all records of an entry by one; the oldest ended entries are dropped if there is no room."""
        if log.number not in self._live:
            return
        frame = framed(log.number, number, Kind.ENDED, _encode(ended))
        self._num_bytes += len(frame.data) - self._live[log.number]
        self._live[log.number] = len(frame.data)
        self._ended[log.number] = None
        self._put(frame)
        while self._num_bytes > self.max_bytes // 2 and len(self._ended) > 1:
            self.drop(next(iter(self._ended)))

    def drop(self, number: int) -> None:
        """Drop the entry with this number. Unknown numbers are ignored."""
        self._logs.pop(number, None)
        num_bytes = self._live.pop(number, None)
        if num_bytes is not None:
            self._num_bytes -= num_bytes
            self._ended.pop(number, None)
            self._put(framed(number, 0, Kind.DROPPED, b""))

    def has(self, number: int) -> bool:
        """Whether the entry with this number is kept."""
        return number in self._live

    async def written(self) -> None:
        """Wait until all records so far are written, or were refused."""
        writer = self._started()
        await writer.until(writer.written)

    async def synced(self) -> None:
        """Wait until all records so far are synced to the disk, or were refused."""
        writer = self._started()
        await writer.until(writer.synced)

    def _log(self, number: int, num_records: int) -> EntryLog:
        log = self._logs.get(number)
        if log is None:
            log = self._logs[number] = EntryLog(self, number, num_records)
        return log

    def _started(self) -> Writer:
        assert self._writer is not None, "a journal is started before it is used"
        return self._writer

    def _put(self, frame: Frame) -> None:
        if not self._closed:
            self._started().put(frame)

    def _on_failed(self, entries: Iterable[int]) -> None:
        for number in entries:
            self._ended.pop(number, None)  # earlier records are still needed if that one was the entry's end
            log = self._logs.get(number)
            if log is not None:
                log.is_lost = True

    def _counts(self, frame: Frame) -> bool:
        """Whether a record is live and must be copied to the newest file. Called by a thread."""
        if frame.entry not in self._live:
            return False
        return (frame.kind is Kind.ENDED) == (frame.entry in self._ended)

    def _is_sparse(self) -> bool:
        """Whether most bytes of the files are dead records. Called by a thread."""
        num_files = len(self._segments)
        enough = 2 * self._num_bytes
        is_large = num_files > 1 and self._segments.size > enough + self._file_size
        are_many = num_files > FILES + enough // self._file_size
        return is_large or are_many


def unavailable(why: str) -> RequestError:
    """Return the error of a request that is to survive the server, but could not."""
    return RequestError(
        f"The request journal takes no requests now: {why}. Try again in {RETRY_AFTER_S} s, or leave out stream and "
        "background.",
        status=503,
        code="journal_unavailable",
        retry_after=RETRY_AFTER_S,
    )


def now() -> float:
    """Return the seconds since the epoch, a clock that the next server shares."""
    return time.time()
