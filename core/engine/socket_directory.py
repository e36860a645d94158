"""The directory of an engine's socket, which only this user may enter.

Owns: making it, removing it, and removing what earlier processes left when they were killed. Never does: touch a directory
that is in use, or that is not certainly one of ours. Called by: `EngineProcess`.

A directory is ours when it has our name, belongs to us, and holds a lock file and nothing but our files. It is in use as long
as somebody holds the lock, which the system gives up when that process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from core.api.errors import UserError

PREFIX = "core-"
LOCK = "engine.lock"
SOCKET = "engine.sock"
MAX_LENGTH = 80
"""Longest directory whose socket path fits the 107 bytes of a unix address."""
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SocketDirectory:
    """A new directory, locked until `remove` or the end of this process. Raises UserError where none can be made."""

    def __init__(self) -> None:
        base = _base()
        _remove_abandoned(base)
        try:
            self.path, self._lock = _make(base)
        except OSError as error:
            raise UserError(
                f"{base}: no directory for the engine's socket can be made here ({error.strerror}); "
                "expected a directory to write to. Set TMPDIR to another one."
            ) from None

    @property
    def address(self) -> str:
        """The address that the engine binds and clients connect to."""
        return f"ipc://{self.path}/{SOCKET}"

    def remove(self) -> None:
        """Harmless when it is gone."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _base() -> Path:
    base = tempfile.gettempdir()
    return Path("/tmp" if len(base) > MAX_LENGTH else base)


def _make(base: Path) -> tuple[Path, int | None]:
    """A directory and its lock; again, should somebody have taken it for abandoned before it was locked."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        with contextlib.suppress(FileNotFoundError):
            new_file = os.O_CREAT | os.O_EXCL | os.O_RDWR
            lock = os.open(path / LOCK, new_file | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:  # a file system without locks, where nothing ever counts as abandoned
                os.close(lock)
                return path, None
            if os.fstat(lock).st_nlink:
                return path, lock
            os.close(lock)


def _remove_abandoned(base: Path) -> None:
    for path in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), _opened(path, None, os.O_DIRECTORY) as directory:
            if os.fstat(directory).st_uid != os.getuid():
                continue
            names = os.listdir(directory)
            if LOCK in names:
                _remove(path, directory, names)


def _remove(path: Path, directory: int, names: list[str]) -> None:
    """Unless it is in use or holds something else. Raises OSError for that."""
    with _opened(LOCK, directory) as lock:
        is_file = stat.S_ISREG(os.fstat(lock).st_mode)
        only_ours = {LOCK, SOCKET}.issuperset(names)
        if not (is_file and only_ours):
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in sorted(names, key=LOCK.__eq__):  # the lock last: it is what says that the rest is ours
            os.unlink(name, dir_fd=directory)
        os.rmdir(path)


@contextlib.contextmanager
def _opened(path: str | Path, directory: int | None, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, _LOOK | flags, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
