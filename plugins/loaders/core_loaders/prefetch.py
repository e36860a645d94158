"""Read-ahead of files into the page cache, while their tensors are used.

Owns: the reading thread, and the detection of network file systems. Never does: keep the bytes it reads.
Called by: `core_loaders.mapped`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

CHUNK = 8 << 20
NETWORKS = ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "glusterfs", "fuse.sshfs", "9p")
MOUNTS = Path("/proc/self/mounts")
SHARE_OF_FREE = 0.9
"""Share of free memory that read-ahead may fill, unless it was requested explicitly."""


@contextlib.contextmanager
def prefetching(paths: Sequence[str]) -> Iterator[None]:
    """Read `paths` one after another in a thread, which ends with the context."""
    done = threading.Event()
    thread = threading.Thread(target=_read_ahead, args=(paths, done), name="prefetch-weights", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _read_ahead(paths: Sequence[str], done: threading.Event) -> None:
    buffer = bytearray(CHUNK)
    with contextlib.suppress(OSError):  # the reader that needs the file reports its error
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while not done.is_set() and file.readinto(buffer):
                    pass


def wants_prefetch(paths: Sequence[str]) -> bool:
    """Whether the files are on a network file system and fit into free memory."""
    if not are_remote(paths):
        return False
    try:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        total = sum(os.path.getsize(path) for path in paths)
    except (OSError, ValueError):  # the system does not provide this information
        return False
    return total <= SHARE_OF_FREE * free


def are_remote(paths: Sequence[str]) -> bool:
    """Whether any of the files is on a network file system; False where the system does not say."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(_file_system(path, lines) in NETWORKS for path in paths)


def _file_system(path: str, lines: Sequence[str]) -> str:
    """Return the type of the file system of `path`. lines: of /proc/self/mounts."""
    real = os.path.realpath(path)
    longest, found = "", ""
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(longest):
            longest, found = point, kind
    return found
