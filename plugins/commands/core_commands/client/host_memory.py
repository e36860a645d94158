"""The host's memory.

Owns: reading what is available, and what the processes of a server took at most. Called by: commands that run several servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
FREE: Final = 0.9
"""Share of the available memory that servers of a command may plan."""


def available_bytes() -> int | None:
    """Return the memory that programs may still take, in bytes; None on a system that does not report it."""
    meminfo = PROC / "meminfo"
    if not meminfo.exists():
        return None
    for line in meminfo.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def peak_bytes(pid: int) -> int | None:
    """Return the peak resident bytes of a process and of the processes below it that still run; None if the system tells none.

    It is the sum of the peaks since each began, so pages that several of them map count in each.
    """
    peaks = [_peak(one) for one in _tree(pid)]
    return sum(peaks) or None


def _tree(pid: int) -> Iterator[int]:
    """Yield a process and all that descend from it."""
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        yield one
        for children in (PROC / str(one) / "task").glob("*/children"):
            with suppress(OSError):  # the thread has ended meanwhile
                waiting += map(int, children.read_text(encoding="ascii").split())


def _peak(pid: int) -> int:
    """Return the peak of one process; 0 for one that has ended."""
    with suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
