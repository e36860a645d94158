"""The directory of a journal: its owner, its permissions, and its files.

Owns: the lock, modes, and names of files. Never does: read or write records. Called by: the journal.

Only one process has a journal open at a time. The system releases the lock when that process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from core.api.errors import UserError

LOCK = "lock"
PATTERN = "*.journal"
_MODE = 0o600
_NEW = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class JournalDirectory:
    """A directory that this process has locked. Raises UserError if it cannot be locked.

    It is created if it does not exist; only its owner may enter it. flag: the argument that names it.
    """

    def __init__(self, path: str, flag: str = "--request-journal") -> None:
        self.path = Path(path).expanduser()
        self._flag = flag
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check()
            self._lock = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
        except OSError as error:
            raise UserError(f"{flag} {path}: {error.strerror or error}; expected a directory to write to.") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise UserError(
                f"{flag} {path}: another server uses it; give each server a directory of its own."
            ) from None

    def files(self) -> list[Path]:
        """Return the files with records, oldest first."""
        return sorted(self.path.glob(PATTERN))

    def create(self, number: int) -> tuple[Path, int]:
        """Create a file that only the owner may read; return its path and descriptor. Raises OSError."""
        path = self.path / f"{number:012d}.journal"
        descriptor = os.open(path, _NEW, _MODE)
        self.sync()
        return path, descriptor

    def sync(self) -> None:
        """Flush the names of new and removed files to the disk. Raises OSError."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Release the lock, so that another process may open the journal."""
        os.close(self._lock)

    def _check(self) -> None:
        found = self.path.stat()
        if found.st_uid != os.geteuid():
            raise UserError(f"{self._flag} {self.path}: it belongs to another user; expected a directory of your own.")
        others = stat.S_IMODE(found.st_mode) & 0o077
        if others:
            raise UserError(
                f"{self._flag} {self.path}: others may enter it (mode {stat.S_IMODE(found.st_mode):o}), and it will hold "
                "what clients wrote; run chmod 700 on it, or name a directory that does not exist yet."
            )
