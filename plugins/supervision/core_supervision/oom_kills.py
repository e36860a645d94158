"""How many processes the system has killed because memory was short.

Owns: where the kernel counts that: the memory cgroup that we are in, version 1 or 2, and the whole machine.
Never does: watch. Called by: the owner of an engine process, when it starts one and when one has died.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")
COUNTER = "oom_kill"
UNIFIED = "memory.events"
LEGACY = "memory.oom_control"


def count_oom_kills(root: Path = ROOT) -> int:
    """The sum of all such counters that can be read: what matters is whether it has risen. root: of the file system."""
    files = [root / "proc/vmstat", *_cgroup_files(root)]
    return sum(_counter(file) for file in files)


def _cgroup_files(root: Path) -> list[Path]:
    """The counters of our own group. In a container its path is that of the host, and its files lie at the top."""
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
    """None where the file cannot be read: other systems have none, and sandboxes hide it."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
