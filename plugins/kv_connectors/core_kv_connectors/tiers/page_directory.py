"""The directory of page files, and the ownership check of its files.

Owns: `PageDirectory`: opening and creating it, the names of files, every operation on them. Never does: read a page's
content, or decide which files are deleted. Called by: the disk tier.

A file is ours if it is a regular file of our own user, or in a shared directory of any user, and its name and its
directory's name have exactly our form. Nothing else is read, counted or deleted. All operations use the descriptors of
directories that were checked when they were opened, so a directory that replaces one of them is never used.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from core.api.kv_transfer import PrefixKey

_DIRECTORY_NAME = re.compile("[0-9a-f]{32}")
_PAGE_NAME = re.compile("(?:[0-9a-f]{32}|[0-9a-f]{64})-[0-9]{1,4}[.]kv")
_TEMPORARY_NAME = re.compile("[.][0-9a-f]{32}[.]tmp")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
ABANDONED_S = 600.0
"""Age in seconds at which a temporary file counts as the remains of a crash."""


class UnsafeDirectoryError(OSError):
    """Raised for a directory in which other users could replace pages. The message is the end of a sentence, with a way
    out.
    """


class StoredPage(NamedTuple):
    """A page file of any fingerprint. used: when it was written or last read, in seconds of the wall clock, or until when a pin
    holds it. path: below the root."""

    used: float
    size: int
    path: str


def page_name(group: int, key: PrefixKey) -> str:
    """Return a block's file name."""
    return f"{key.digest.hex()}-{group}.kv"


class PageDirectory:
    """The directory `root`/`fingerprint`, created if missing, and its siblings of other fingerprints.

    All operations raise OSError; operations on a file raise FileNotFoundError for a foreign one.
    fingerprint: 32 hex digits.
    is_shared: other users may write there, because a MAC protects pages; what is created gets the permissions of `root`.
    Raises UnsafeDirectoryError when other users may write to it and it is not shared.
    """

    def __init__(self, root: Path, fingerprint: str, *, is_shared: bool = False) -> None:
        self._root = self._own = -1
        self._is_shared = is_shared
        _make_private(root)
        self._root = os.open(root, _DIRECTORY)
        if not is_shared:
            _check_private(self._root, root)
        self._mode = stat.S_IMODE(os.fstat(self._root).st_mode) if is_shared else 0o700
        is_new = False
        with contextlib.suppress(FileExistsError):
            os.mkdir(fingerprint, 0o700, dir_fd=self._root)
            is_new = True
        self._own = os.open(fingerprint, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._root)
        if is_new and is_shared:
            # By its descriptor, which follows no link that another user has put in its place meanwhile.
            os.fchmod(self._own, self._mode)
        if not is_shared:
            _check_private(self._own, root / fingerprint)

    def __del__(self) -> None:
        """Close the descriptors with the last reference: another thread may still use an object that has been replaced."""
        for descriptor in (self._root, self._own):
            if descriptor >= 0:
                os.close(descriptor)

    @property
    def writable(self) -> bool:
        """Whether files can be created in it."""
        return os.access(".", os.W_OK | os.X_OK, dir_fd=self._own)

    def has(self, name: str) -> bool:
        """Whether there is a page of this name."""
        try:
            return self._is_ours(os.stat(name, dir_fd=self._own, follow_symlinks=False))
        except FileNotFoundError:
            return False

    def open(self, name: str) -> BufferedReader:
        """Open a page's file for reading."""
        if not self.has(name):
            raise FileNotFoundError(name)
        return open(os.open(name, _READ, dir_fd=self._own), "rb")

    @contextlib.contextmanager
    def temporary(self, parts: Sequence[bytes | memoryview]) -> Iterator[str]:
        """Create a file with this content, under a name for `publish`; it is deleted afterwards unless it was
        published.
        """
        name = f".{secrets.token_hex(16)}.tmp"
        descriptor = os.open(name, _CREATE, 0o600, dir_fd=self._own)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                if self._is_shared:
                    os.fchmod(descriptor, 0o600 | self._mode & 0o666)
                for part in parts:
                    _write_all(file.fileno(), part)
            yield name
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._own)

    def publish(self, temporary: str, name: str) -> None:
        """Atomically make a temporary file a page. Raises FileExistsError when a foreign file has the name."""
        with contextlib.suppress(FileNotFoundError):
            if not self._is_ours(os.stat(name, dir_fd=self._own, follow_symlinks=False)):
                raise FileExistsError(f"'{name}' is not a page of ours")
        os.replace(temporary, name, src_dir_fd=self._own, dst_dir_fd=self._own)

    def mark(self, name: str, used: float) -> None:
        """Set the time at which a page counts as used last, in seconds of the wall clock; one in the future holds it."""
        if self.has(name):
            os.utime(name, (used, used), dir_fd=self._own, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Delete a page."""
        if self.has(name):
            os.unlink(name, dir_fd=self._own)

    def count(self, limit: int) -> int:
        """Return the number of pages of this fingerprint, at most `limit`."""
        names = (name for name, _ in self._files(self._own, ".") if _PAGE_NAME.fullmatch(name))
        return sum(1 for _ in islice(names, limit))

    def names(self) -> Iterator[str]:
        """Yield the names of the pages of this fingerprint; whose they are is checked when one is opened."""
        with os.scandir(self._own) as entries:
            yield from (entry.name for entry in entries if _PAGE_NAME.fullmatch(entry.name))

    def remove_all(self) -> list[str]:
        """Delete the pages of this fingerprint; returns those that cannot be deleted."""
        names = [name for name, _ in self._files(self._own, ".") if _PAGE_NAME.fullmatch(name)]
        return [name for name in names if not _unlink(self._own, name)]

    def all_pages(self) -> list[StoredPage]:
        """Return the pages of all fingerprints, and delete temporary files left by a crash. Unreadable parts are left
        out.
        """
        found: list[StoredPage] = []
        for directory in os.listdir(self._root):
            if not _DIRECTORY_NAME.fullmatch(directory):
                continue
            with contextlib.suppress(OSError):
                for name, status in self._files(self._root, directory):
                    path = f"{directory}/{name}"
                    if _PAGE_NAME.fullmatch(name):
                        found.append(StoredPage(status.st_mtime, status.st_size, path))
                    elif _TEMPORARY_NAME.fullmatch(name) and time.time() - status.st_mtime > ABANDONED_S:
                        self.remove_stored(path)
        return found

    def remove_stored(self, path: str) -> bool:
        """Delete a page listed by `all_pages`; False when it cannot be deleted."""
        return _unlink(self._root, path)

    def _files(self, parent: int, directory: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield names and states of our files in a directory; of another user's only if it is shared."""
        descriptor = os.open(directory, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            if not self._is_shared and os.fstat(descriptor).st_uid != os.geteuid():
                return
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if self._is_ours(status):
                            yield entry.name, status
        finally:
            os.close(descriptor)

    def _is_ours(self, status: os.stat_result) -> bool:
        return stat.S_ISREG(status.st_mode) and (self._is_shared or status.st_uid == os.geteuid())


def _unlink(parent: int, path: str) -> bool:
    try:
        os.unlink(path, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _write_all(descriptor: int, part: bytes | memoryview) -> None:
    rest = memoryview(part).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _make_private(path: Path) -> None:
    """Create a directory and its missing parents, for our own user only."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        if path.parent == path:
            raise
        _make_private(path.parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)


def _check_private(descriptor: int, path: Path) -> None:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise UnsafeDirectoryError(
            f"{path} belongs to user {status.st_uid}, expected {os.geteuid()}, who runs the engine: whoever owns it can "
            "replace what is cached there; choose another directory"
        )
    if status.st_mode & 0o022:
        raise UnsafeDirectoryError(
            f"{path} can be written by other users (mode {stat.S_IMODE(status.st_mode):o}), who could replace what is "
            f"cached there; run 'chmod go-w {path}' or choose another directory"
        )
