"""Reading files ahead into the page cache, while their tensors are used.

Owns: the thread that reads, and whether files lie on a network. Never does: keep what it reads.
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
"""Of free memory that files read ahead may fill, unless they were asked for."""


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
    with contextlib.suppress(OSError):  # the reader that the file is for says what is wrong with it
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while not done.is_set() and file.readinto(buffer):
                    pass


def wants_prefetch(paths: Sequence[str]) -> bool:
    """Whether the files lie on a network and fit into free memory."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
        remote = any(_file_system(path, lines) in NETWORKS for path in paths)
        if not remote:
            return False
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        total = sum(os.path.getsize(path) for path in paths)
    except (OSError, ValueError):  # a system without these facts
        return False
    return total <= SHARE_OF_FREE * free


def _file_system(path: str, lines: Sequence[str]) -> str:
    """The type of the file system that holds `path`. lines: of /proc/self/mounts."""
    real = os.path.realpath(path)
    longest, found = "", ""
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(longest):
            longest, found = point, kind
    return found
