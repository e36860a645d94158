"""The results of a batch so far: each is written to disk as it arrives.

Owns: `NAME.partial`, its form and its lock. Never does: run a request, or sort results into a file (a command and a server
do). Called by: the runs of batches.

A line of `NAME.partial` is the digest of a request's line, a space and its result. A resumed run reuses the results of
unchanged lines, so lines may be added, changed and removed in between.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from core.api.errors import CoreError, UserError
from core_apis.batches.batch_file import Place
from core_apis.batches.line import LineError

DIGEST_SIZE = 32
"""Hexadecimal digits at the beginning of a line of `OUT.partial`."""
RECORD = re.compile(rb"[0-9a-f]{32} \{.*\}\n", re.DOTALL)


class OutputError(CoreError):
    """Raised when a result cannot be written; the message says what is kept and how to resume."""


class BatchResponse(msgspec.Struct):
    """A server's response. status_code: of HTTP. request_id: the answer's own. body: as received."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchError(msgspec.Struct):
    """The reason why a line was not run. line: its number, from 1."""

    code: str
    message: str
    line: int


class BatchResult(msgspec.Struct):
    """One output line, in OpenAI's form: `response` for any answer of a server, including errors; otherwise `error`."""

    id: str
    custom_id: str | None
    response: BatchResponse | None
    error: BatchError | None


class KeptResults:
    """The results so far, in a file locked by this process.

    out: the final file. Use it as a context manager.

    Raises UserError when another run has the file locked, or when the file has another format.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = out.with_name(out.name + ".partial")
        self._places: dict[bytes, tuple[int, int]] = {}
        try:
            self._file: BinaryIO = self.path.open("a+b", buffering=0)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}.") from None
        try:
            self._lock()
            self._end = self._load()
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return len(self._places)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._end:
            with suppress(OSError):  # leaving an empty file behind loses nothing
                self.path.unlink(missing_ok=True)
        self._file.close()

    def has(self, place: Place) -> bool:
        """Whether a line has a result."""
        return place.digest in self._places

    def add(self, place: Place, result: BatchResult) -> None:
        """Write a result. Raises OutputError when the disk is full."""
        text = msgspec.json.encode(result)
        record = place.digest.hex().encode() + b" " + text + b"\n"
        written = 0
        try:
            while written < len(record):
                written += self._file.write(record[written:]) or 0
        except OSError as error:
            with suppress(OSError):  # otherwise the next run drops the partial line
                self._file.truncate(self._end)
            raise self.unwritable(self.path, error) from None
        self._places[place.digest] = (self._end + DIGEST_SIZE + 1, len(text))
        self._end += len(record)

    def text(self, place: Place) -> bytes:
        """Return the output line of a place."""
        if place.error is not None:
            return msgspec.json.encode(not_run(place, place.error))
        offset, size = self._places[place.digest]
        self._file.seek(offset)
        return self._file.read(size)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{self.path}: another run writes there; wait for it, or name another output.") from None

    def _load(self) -> int:
        """Load the results of an earlier run, up to an unfinished line. Returns the file's new size."""
        self._file.seek(0)
        end = 0
        with os.fdopen(os.dup(self._file.fileno()), "rb") as reader:
            for record in reader:
                is_whole = RECORD.fullmatch(record) is not None
                if not is_whole and not end and record.endswith(b"\n"):
                    raise UserError(f"{self.path}: not what a run leaves; remove it, or name another output.")
                if not is_whole:
                    break  # the earlier run was killed while writing this line
                digest = bytes.fromhex(record[:DIGEST_SIZE].decode())
                self._places[digest] = (end + DIGEST_SIZE + 1, len(record) - DIGEST_SIZE - 2)
                end += len(record)
        self._file.truncate(end)
        return end

    def unwritable(self, path: Path, error: OSError) -> OutputError:
        """Return the error for a file that cannot be written."""
        kept = f"{len(self)} results are kept in {self.path}" if self._places else "there is no result yet"
        return OutputError(f"{path}: cannot be written: {error.strerror}; {kept}. Run the same command again to go on.")


def not_run(place: Place, error: LineError) -> BatchResult:
    """Return the result of a line that cannot be run."""
    told = BatchError(error.code, str(error), place.number)
    return BatchResult(f"batch_req_{place.number}", error.custom_id, None, told)
