"""Digests of adapters whose files have not changed since they were read.

Owns: what tells that files are unchanged. Never does: compute a digest, or write anything. Called by: formats of directories.

Half of the processor time of reading an adapter again, after it made room for others, was its SHA-256.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from core_loaders.prefetch import are_remote

MOST: Final = 4096
"""Digests that are kept; those that were taken first make room."""
SETTLED_NS: Final = 2_000_000_000
"""Age from which on a change of a file is sure to have another time than one that comes later: clocks of file systems tick
every few milliseconds.
"""

State = tuple[tuple[int, ...], ...]
"""Device, inode, size, and both times of each file."""


class FileDigests:
    """The digests that one reader has computed."""

    def __init__(self) -> None:
        self._known: dict[State, str] = {}

    def of(self, paths: Sequence[Path], read: Callable[[], None], compute: Callable[[], str]) -> str:
        """Read files, and return their digest: the one from an earlier time if they were the same then. read: reads them."""
        before = _state(paths)
        read()
        # Files that were replaced while they were read have another state now, and their digest belongs to no state.
        is_sure = before is not None and before == _state(paths)
        found = self._known.get(before) if is_sure and before is not None else None
        if found is not None:
            return found
        digest = compute()
        if is_sure and before is not None:
            self._known[before] = digest
            while len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        return digest


def _state(paths: Sequence[Path]) -> State | None:
    """Return the state of files; None where it would prove nothing: too new, on a network, or gone."""
    found = []
    try:
        for path in paths:
            status = os.stat(path)
            if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < SETTLED_NS:
                return None
            found.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    except OSError:
        return None  # reading says what is wrong
    return None if are_remote([str(path) for path in paths]) else tuple(found)
