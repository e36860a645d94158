"""Numbers that processes of one machine tell each other by files of one directory.

Owns: the directory, this process's file, which goes with it, finding those of others, and forgetting those of dead processes.
Never does: know what the numbers mean. Called by: the counts of API keys (`core_frontend.queue.common`), the accounts of the
fair policy.

A process writes its own file and reads those of the others, so no lock is held while anything is counted. The writer has its
file locked for as long as it lives: one that can be locked is of a dead process.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import stat
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from core.api.errors import UserError

LARGEST: Final = 64 << 20
"""Bytes of a file that is read."""
SETTLED_S: Final = 0.05
"""Seconds for which a change of the directory may have the same time as the one before; until then it is read again."""


@dataclass(eq=False)
class Other:
    """The file of another process. head: bytes that say what the numbers are; as long as our own, or longer."""

    path: Path
    descriptor: int
    head: bytes
    numbers: memoryview

    @property
    def is_dead(self) -> bool:
        """Whether its process has ended."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Forget the file."""
        self.numbers.release()
        os.close(self.descriptor)


class SharedNumbers:
    """The numbers of this process, and those of the others with the same kind of file.

    flag: the argument that names the directory. kind: eight letters that name the kind of file and its version.
    head: says what the numbers are; a multiple of 8 bytes. count: how many there are.
    own: the numbers of this process. lock: held by whoever reads those of others.

    Raises UserError for a directory that cannot be used, or is not this user's alone.
    """

    def __init__(self, directory: str, flag: str, kind: bytes, head: bytes, count: int) -> None:
        self.lock = threading.Lock()
        self._kind = kind
        self._suffix = f".{kind.decode()}"
        self._directory = Path(directory).expanduser()
        self._others: dict[str, Other] = {}
        self._changed = -1
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check(self._directory)
            self._path = self._directory / f"{secrets.token_hex(8)}{self._suffix}"
            self._descriptor, self.own = self._create(head, count)
        except OSError as error:
            raise UserError(
                f"{flag} {directory}: {error.strerror or error}; expected a directory of your own to write to."
            ) from None
        weakref.finalize(self, _forget_all, self._path, self._descriptor, self._others)

    def others(self) -> list[Other]:
        """Return the files of the other processes. The caller has the lock."""
        try:
            changed = self._directory.stat().st_mtime_ns
        except OSError:
            changed = 0  # somebody has removed the directory: files that are open are still read
        if changed and changed != self._changed:
            is_settled = time.time_ns() - changed > SETTLED_S * 1e9
            self._changed = changed if is_settled else -1
            self._look()
        return list(self._others.values())

    def forget_dead(self) -> None:
        """Delete the files of processes that have ended."""
        with self.lock:
            for name, other in list(self._others.items()):
                if other.is_dead:
                    self._forget(name)

    def _create(self, head: bytes, count: int) -> tuple[int, memoryview]:
        """Write this process's file. It appears locked and whole, by a rename."""
        draft = self._path.with_suffix(".new")
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        whole = self._kind + len(head).to_bytes(8, "little") + head
        with open(descriptor, "wb", closefd=False) as file:
            file.write(whole)
            file.truncate(len(whole) + 8 * count)
        draft.rename(self._path)
        return descriptor, memoryview(mmap.mmap(descriptor, 0))[len(whole) :].cast("q")

    def _look(self) -> None:
        """Find files that have come, and forget those that have gone."""
        names = {path.name for path in self._directory.glob(f"*{self._suffix}")} - {self._path.name}
        for name in self._others.keys() - names:
            self._others.pop(name).close()
        for name in names - self._others.keys():
            other = self._read(self._directory / name)
            if other is not None:
                self._others[name] = other
                if other.is_dead:
                    self._forget(name)

    def _forget(self, name: str) -> None:
        other = self._others.pop(name)
        with suppress(OSError):
            other.path.unlink()
        other.close()

    def _read(self, path: Path) -> Other | None:
        """Return another process's file; None for what is no file of this kind."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        size = os.fstat(descriptor).st_size
        start = os.pread(descriptor, 16, 0) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
        begin = 16 + int.from_bytes(start[8:], "little")
        if start[:8] != self._kind or len(start) < 16 or not begin <= size <= LARGEST or begin % 8 or size % 8:
            os.close(descriptor)
            return None
        head = os.pread(descriptor, begin - 16, 16)
        numbers = memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))[begin:].cast("q")
        return Other(path, descriptor, head, numbers)


def _forget_all(path: Path, descriptor: int, others: dict[str, Other]) -> None:
    """Remove this process's file, and close those of the others."""
    with suppress(OSError):
        path.unlink()
    os.close(descriptor)
    for other in others.values():
        other.close()
    others.clear()


def _check(directory: Path) -> None:
    """Raise PermissionError for a directory that other users may enter, or that is not this user's."""
    status = directory.stat()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError(0, "it belongs to another user, or others may enter it (chmod 700)")
