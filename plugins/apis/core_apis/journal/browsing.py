"""The frames of a directory of journal files that somebody else wrote, and may be writing now.

Owns: reading them piece by piece, and the limits: kinds of files, time that damage may cost, bytes of records at once. Never
does: lock or change the directory, or know what records mean. Called by: `core diff`, `core kv audit`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from core.api.errors import UserError
from core_apis.journal.directory import PATTERN
from core_apis.journal.records import HEAD_BYTES, MARK, Frame, frame_at, length_at

PIECE: Final = 4 << 20
"""Bytes that are read at once."""
MOST_FILES: Final = 10_000
MOST_KEPT: Final = 512 << 20
"""Bytes of records that a command holds in memory; decoded they take several times as much."""
MOST_WASTED: Final = 256 << 20
"""Bytes whose checksum may be computed in vain, besides four times the file: each mark of a damaged file may claim the rest."""


def browse(directory: str) -> Iterator[Frame]:
    """Yield the records of all files, oldest first; damaged ones are skipped.

    Raises UserError for a directory that cannot be read, and for what is no file of a journal.
    """
    for path in journal_files(directory):
        try:
            # A pipe of that name would wait for a writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise UserError(f"{path}: no file; expected one that a server wrote. Remove it from the directory.")
                yield from _Reading(path, file, found.st_size).frames()
        except FileNotFoundError:
            continue  # A server that runs removes its oldest files.
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}.") from None


def journal_files(directory: str) -> list[Path]:
    """Return the files of a directory with records, oldest first. Raises UserError if it is no directory."""
    try:
        folder = Path(directory).expanduser()
        if not folder.is_dir():
            raise UserError(f"{directory}: no directory; expected one that a server wrote.")
        paths = sorted(folder.glob(PATTERN))
    except OSError as error:
        raise UserError(f"{directory}: {error.strerror or error}; expected the directory of a server.") from None
    except RuntimeError:
        raise UserError(f"{directory}: there is no such home directory; write the whole path.") from None
    if len(paths) > MOST_FILES:
        raise UserError(f"{directory}: {len(paths)} files; at most {MOST_FILES} are read. Move older ones elsewhere.")
    return paths


@dataclass
class Budget:
    """The bytes of records that may still be kept in memory. source: the directory's name."""

    source: str
    left: int = field(default_factory=lambda: MOST_KEPT)

    def take(self, num_bytes: int) -> None:
        """Count bytes that are kept. Raises UserError beyond the limit."""
        self.left -= num_bytes
        if self.left < 0:
            raise UserError(
                f"{self.source}: its records have more than {MOST_KEPT >> 20} MiB, which is too much at once; copy some of its "
                "files into a directory of their own. Of recorded traffic, --limit and --tenant choose fewer."
            )


@dataclass
class _Reading:
    """One file that is read piece by piece.

    size: bytes of the file when it was opened; what is appended meanwhile is not read.
    data: the part in memory. place: of its first byte in the file. wasted: bytes whose checksum was wrong.
    """

    path: Path
    file: BinaryIO
    size: int
    data: bytes = b""
    place: int = 0
    wasted: int = 0

    def frames(self) -> Iterator[Frame]:
        """Yield the records of the file. Raises UserError where damage costs too much time."""
        position = 0
        while True:
            position = self.data.find(MARK, position)
            if position < 0:
                position = self._read(max(len(self.data) - len(MARK) + 1, 0), PIECE)
                if self.data.find(MARK) < 0 and self._left == 0:
                    return
                continue
            position = self._fill(position)
            frame = frame_at(self.data, position)
            if frame is None:
                self._waste(position)
                position += 1
            else:
                yield frame
                position += len(frame.data)

    @property
    def _left(self) -> int:
        """Return the bytes of the file that are not in memory yet."""
        return self.size - self.place - len(self.data)

    def _fill(self, position: int) -> int:
        """Bring the whole frame at this position into memory, if the file has one; return its new position."""
        if len(self.data) - position < HEAD_BYTES:
            position = self._read(position, PIECE)
        length = length_at(self.data, position)
        missing = 0 if length is None else position + HEAD_BYTES + length - len(self.data)
        return self._read(position, max(missing, PIECE)) if 0 < missing <= self._left else position

    def _waste(self, position: int) -> None:
        length = length_at(self.data, position)
        if length is not None and position + HEAD_BYTES + length <= len(self.data):
            self.wasted += length
        if self.wasted > MOST_WASTED + 4 * self.size:
            raise UserError(
                f"{self.path}: too many damaged records in it; move the file out of the directory, or copy it again."
            )

    def _read(self, start: int, num_bytes: int) -> int:
        """Forget the bytes in memory before `start`, and read some more; return the place of `start`, which is 0."""
        rest = self.data[start:]
        self.place += start
        self.data = rest
        more = self.file.read(min(num_bytes, self._left))
        if not more:
            self.size = self.place + len(rest)  # the file was cut meanwhile
        self.data = rest + more
        return 0
