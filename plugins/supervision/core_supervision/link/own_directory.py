"""Temporary directories that are removed after use, or by a later process when their owner was killed.

Owns: `OwnDirectory`, and the removal of directories that killed processes left. Never does: touch a directory that is in use,
or that is not certainly one of ours. Called by: the engine's socket directory, the checks of plugins.

A directory is ours when it has our name, belongs to our user, and contains a lock file and nothing but our files. It is in use
as long as a process holds the lock, which the system releases when that process ends, however it ends.
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
    """The common properties of directories with one purpose.

    prefix: beginning of their names.
    lock: name of the lock file, which no other kind uses.
    files: names of all other files; None: any content, including folders.
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

    path: path of the directory.

    Raises OSError when it cannot be created. The removal also runs when the object is collected.
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
        """Remove the directory with its content; does nothing when it was already removed."""
        self._remove()


def _remove_ours(path: Path, lock: int | None) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def _make(kind: Kind, base: Path) -> tuple[Path, int | None]:
    """Make a directory and lock it; return its path and the lock's descriptor, None on a file system without locks.

    There is a race with `_remove_abandoned` in another process, which may take the directory for abandoned after we have
    created the lock file and before we lock it. It then removes both, and our lock is on a file without a name (`st_nlink` is
    0). In that case, and when the directory is gone before the lock file exists, we try again.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=kind.prefix, dir=base))
        with contextlib.suppress(FileNotFoundError):
            new_file = os.O_CREAT | os.O_EXCL | os.O_RDWR
            lock = os.open(path / kind.lock, new_file | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:  # A file system without locks, where no directory ever counts as abandoned.
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
    """Remove an abandoned directory. Raises OSError when it is in use."""
    with _opened(kind.lock, directory) as lock:
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if kind.files is None:
            shutil.rmtree(path, ignore_errors=True)
            return
        for name in sorted(names, key=kind.lock.__eq__):  # The lock last: only it marks the rest as ours.
            os.unlink(name, dir_fd=directory)
        os.rmdir(path)


@contextlib.contextmanager
def _opened(path: str | Path, directory: int | None, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, _LOOK | flags, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
