"""The file with the good starts of one model, and copies of the code that its plugins had.

Owns: `RunBook`: reading, adding a run, the lock between engines that start at once, and the number of kept runs. Never
does: compare results. Called by: the canary's observer (adds), `core plugins doctor` (reads).
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from core.api.errors import UNREADABLE, UserError
from core_observers.runs.copies import Copies
from core_observers.runs.run import FORMAT, KEPT_TIMES, Run

logger = logging.getLogger(__name__)

FOLDER: Final = "runs"
MOST_RUNS: Final = 64
"""Runs that are kept of one model; a start that repeats the newest one is no further run."""
MAX_BOOK: Final = 16 << 20
"""Largest file in bytes that is read."""


class _Book(msgspec.Struct, forbid_unknown_fields=True):
    """The file's content. last: the highest number that a run ever had, so that no number is used twice."""

    format: int
    last: int = 0
    runs: list[Run] = []


class _Version(msgspec.Struct):
    format: int


class RunBook:
    """The runs of one model. canary: directory of `--state-canary`. key: see `runs_key`."""

    def __init__(self, canary: Path, key: str) -> None:
        self.path = canary / FOLDER / f"{key}.json"
        self.copies = Copies(canary / "packages")

    def runs(self) -> list[Run]:
        """Return all runs, the oldest first; none without a file. Raises UserError for a file that is none of ours."""
        return self._read().runs

    def add(self, run: Run) -> Run | None:
        """Add a good start, with copies of the code of its plugins. Return the previous run, None if this repeats it.

        Raises UserError for a file that cannot be read, OSError where nothing can be written.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            book = self._read()
            newest = book.runs[-1] if book.runs else None
            if newest is not None and newest.repeats(run):
                newest.starts += 1
                newest.last = run.last
                newest.times = [*newest.times, *run.times][-KEPT_TIMES:]
                self._write(book)
                return None
            book.last += 1
            run.number = book.last
            book.runs = [*book.runs, run][-MOST_RUNS:]
            self.copies.keep(run.packages)
            self._write(book)
            self._drop_copies()
        return newest

    def _drop_copies(self) -> None:
        """Drop the copies that no model's runs name; all stay while the runs of one model cannot be read."""
        found: set[str] = set()
        for path in self.path.parent.glob("*.json"):
            try:
                found |= {package.key for run in _read_book(path).runs for package in run.packages}
            except UserError as error:
                logger.warning("State canary: copies of plugins are not cleared: %s", error)
                return
        self.copies.drop_all_but(found)

    def _read(self) -> _Book:
        return _read_book(self.path)

    def _write(self, book: _Book) -> None:
        draft = self.path.with_suffix(f".{os.getpid()}.tmp")
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(book), indent=1))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of all books of the directory: engines that start at once add their runs one after another."""
        descriptor = os.open(self.path.parent / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _read_book(path: Path) -> _Book:
    way_out = "Remove it, or name another directory; the next start begins a new one."
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BOOK + 1)
        if len(data) > MAX_BOOK:
            raise UserError(f"{path}: more than {MAX_BOOK >> 20} MiB, which no record of starts has. {way_out}")
        version = msgspec.json.decode(data, type=_Version).format
        if version != FORMAT:
            raise UserError(
                f"{path}: its format is {version}, this version reads {FORMAT}; another version wrote it. {way_out}"
            )
        return msgspec.json.decode(data, type=_Book)
    except FileNotFoundError:
        return _Book(FORMAT)
    except UNREADABLE as error:
        raise UserError(f"{path} is no record of starts ({error}). {way_out}") from error
