"""Temporary directories of ours: removed when they are not needed any more, and by a later process when theirs was killed.

Owns: `OwnDirectory`, and removing what killed processes left. Never does: touch a directory that is in use, or that is not
certainly one of ours. Called by: the engine's socket directory, the checks of plugins.

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
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Kind:
    """What directories of one purpose have in common.

    prefix: their names begin with it.
    lock: the name of the lock file, which no other kind has.
    files: the names of all other files; None: there may be anything, folders too.
    """

    prefix: str
    lock: str
    files: frozenset[str] | None = None

    def may_hold(self, names: list[str]) -> bool:
        """Whether a directory with these entries can be of this kind."""
        if self.lock not in names:
            return False
        return self.files is None or self.files.union({self.lock}).issuperset(names)


class OwnDirectory:
    """A new directory in `base`, locked until `remove`, the end of a `with`, or the end of this process.

    path: of the directory.

    Raises OSError where none can be made.
    """

    def __init__(self, kind: Kind, base: Path | None = None) -> None:
        base = Path(tempfile.gettempdir()) if base is None else base
        _remove_abandoned(kind, base)
        self.path, lock = _make(kind, base)
        self._remove = weakref.finalize(self, _remove_ours, self.path, lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it with all that it holds. Harmless when it is gone."""
        self._remove()


def _remove_ours(path: Path, lock: int | None) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def _make(kind: Kind, base: Path) -> tuple[Path, int | None]:
    """A directory and its lock; again, should somebody have taken it for abandoned before it was locked."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=kind.prefix, dir=base))
        with contextlib.suppress(FileNotFoundError):
            new_file = os.O_CREAT | os.O_EXCL | os.O_RDWR
            lock = os.open(path / kind.lock, new_file | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:  # a file system without locks, where nothing ever counts as abandoned
                os.close(lock)
                return path, None
            if os.fstat(lock).st_nlink:
                return path, lock
            os.close(lock)


def _remove_abandoned(kind: Kind, base: Path) -> None:
    for path in base.glob(f"{kind.prefix}*"):
        with contextlib.suppress(OSError), _opened(path, None, os.O_DIRECTORY) as directory:
            if os.fstat(directory).st_uid != os.getuid():
                continue
            names = os.listdir(directory)
            if kind.may_hold(names):
                _remove(kind, path, directory, names)


def _remove(kind: Kind, path: Path, directory: int, names: list[str]) -> None:
    """Unless it is in use. Raises OSError for that."""
    with _opened(kind.lock, directory) as lock:
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if kind.files is None:
            shutil.rmtree(path, ignore_errors=True)
            return
        for name in sorted(names, key=kind.lock.__eq__):  # the lock last: it is what says that the rest is ours
            os.unlink(name, dir_fd=directory)
        os.rmdir(path)


@contextlib.contextmanager
def _opened(path: str | Path, directory: int | None, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, _LOOK | flags, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
