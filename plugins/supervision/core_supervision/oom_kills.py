"""Count of processes that the system has killed for lack of memory.

Owns: the kernel's counters: those of this process's memory cgroup, version 1 or 2, and of the whole machine.
Never does: watch them. Called by: the owner of an engine process, when it starts one and when one has died.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")
COUNTER = "oom_kill"
UNIFIED = "memory.events"
LEGACY = "memory.oom_control"


def count_oom_kills(root: Path = ROOT) -> int:
    """Return the sum of all readable counters; only its increase has a meaning. root: root of the file system."""
    files = [root / "proc/vmstat", *_cgroup_files(root)]
    return sum(_counter(file) for file in files)


def _cgroup_files(root: Path) -> list[Path]:
    """Return the counter files of this process's group. In a container its path is the host's, and its files are at the top."""
    mount = root / "sys/fs/cgroup"
    files: dict[Path, None] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        group = path.strip("/")
        if not controllers:
            files[mount / group / UNIFIED] = None
            files[mount / UNIFIED] = None
        elif "memory" in controllers.split(","):
            files[mount / "memory" / group / LEGACY] = None
            files[mount / "memory" / LEGACY] = None
    return list(files)


def _counter(file: Path) -> int:
    for line in _lines(file):
        name, _, value = line.partition(" ")
        if name == COUNTER:
            return int(value)
    return 0


def _lines(file: Path) -> list[str]:
    """Return the lines of a file; none when it cannot be read: other systems lack it, and sandboxes hide it."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
