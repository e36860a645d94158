"""The files of a journal. Records are appended to the newest file, and the oldest files are removed.

Owns: appending, beginning new files, and copying live records out of the oldest file. Never does: know what records
mean, or wait for the disk unless asked to. Called by: the journal's threads, any of which may append.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from core_apis.journal.directory import JournalDirectory
from core_apis.journal.records import FileHead, Frame, Kind, framed, frames


@dataclass(slots=True)
class Segment:
    """One file.

    descriptor: open for the newest files, None for those of earlier runs. size: bytes. dirty: not yet synced.
    failed: the last sync of it failed.
    """

    path: Path
    descriptor: int | None
    size: int
    dirty: bool = False
    failed: bool = False


class Segments:
    """All files of one journal.

    directory: locked. head: begins every file. max_size: size in bytes from which a new file is begun.
    """

    def __init__(self, directory: JournalDirectory, head: FileHead, max_size: int) -> None:
        self._directory = directory
        self._head = framed(0, 0, Kind.FILE, msgspec.msgpack.encode(head)).data
        self._max_size = max_size
        self._lock = threading.Lock()
        self._files: deque[Segment] = deque()
        number = 0
        for path in directory.files():
            self._files.append(Segment(path, None, path.stat().st_size))
            number = int(path.stem) if path.stem.isdigit() else number
        self._next_number = number + 1
        self._begin()

    def __len__(self) -> int:
        return len(self._files)

    @property
    def size(self) -> int:
        """Return the size of all files in bytes."""
        return sum(segment.size for segment in list(self._files))

    def append(self, data: bytes) -> None:
        """Write whole frames; they survive the end of this process, but not that of the machine. Raises OSError."""
        with self._lock:
            self._append(data)

    def sync(self) -> None:
        """Sync all appended records to the disk, so that they survive the end of the machine, too. Raises OSError."""
        with self._lock:
            dirty = [segment for segment in self._files if segment.dirty]
            for segment in dirty:
                segment.dirty = False
        # Outside the lock, so that records can be appended while the disk syncs.
        try:
            for segment in dirty:
                _sync(segment)
        except OSError:
            with self._lock:
                for segment in dirty:
                    segment.dirty = True
            raise
        with self._lock:
            self._close_old()

    def begin_new_file(self) -> None:
        """Begin a new file after a failure, which may have damaged the newest one. Raises OSError."""
        with self._lock:
            self._begin()
        self.sync()

    def carry_on(self, counts: Callable[[Frame], bool]) -> None:
        """Append the live records of the oldest file again, and remove that file. Raises OSError.

        counts: whether a record is live; asked right before the record is appended, so no later record overtakes it.
        """
        oldest = self._files[0]
        for frame in frames(oldest.path.read_bytes()):
            with self._lock:
                if counts(frame):
                    self._append(frame.data)
        # The copies must be on the disk before their original is removed.
        self.sync()
        with self._lock:
            self._files.popleft()
        if oldest.descriptor is not None:
            os.close(oldest.descriptor)
        oldest.path.unlink()
        self._directory.sync()

    def close(self) -> None:
        """Close all files. Raises OSError if the last records do not reach the disk."""
        try:
            self.sync()
        finally:
            for segment in self._files:
                if segment.descriptor is not None:
                    os.close(segment.descriptor)
                segment.descriptor = None

    def _append(self, data: bytes) -> None:
        newest = self._files[-1]
        if newest.size + len(data) > self._max_size and newest.size > len(self._head):
            newest = self._begin()
        descriptor = newest.descriptor
        assert descriptor is not None, "the newest file is open"
        try:
            _write(descriptor, data)
        except OSError:
            os.ftruncate(descriptor, newest.size)  # half a record would only be damage
            raise
        newest.size += len(data)
        newest.dirty = True

    def _begin(self) -> Segment:
        path, descriptor = self._directory.create(self._next_number)
        try:
            _write(descriptor, self._head)
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise
        self._next_number += 1
        segment = Segment(path, descriptor, len(self._head), dirty=True)
        self._files.append(segment)
        return segment

    def _close_old(self) -> None:
        """Close the descriptors of complete and synced files, which are only read from now on."""
        for segment in list(self._files)[:-1]:
            if segment.descriptor is not None and not segment.dirty:
                os.close(segment.descriptor)
                segment.descriptor = None


def _sync(segment: Segment) -> None:
    if segment.descriptor is None:
        return
    if segment.failed:
        # Linux marks pages as clean when their write fails, so another fsync alone would succeed without writing them.
        data = segment.path.read_bytes()[: segment.size]
        with segment.path.open("r+b") as file:
            file.write(data)
    segment.failed = True
    os.fsync(segment.descriptor)
    segment.failed = False


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
