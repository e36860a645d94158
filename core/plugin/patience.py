"""A time limit for another process that counts only the seconds in which it could run.

On a busy machine a process may wait long for a processor; that time must not count against it.

Owns: that clock. Never does: end a process. Called by: `core.plugin.forks`, `core_kit.runner`.
"""

from __future__ import annotations

import time
from pathlib import Path

MOST = 6
"""Upper bound of the wait, as a multiple of the limit, however little processor time the process gets."""
NANOSECONDS = 1e9
PROC = Path("/proc")


class Patience:
    """The time limit of one process, which begins when the object is created.

    pid: id of the process. limit_s: seconds, not counting those in which the process waited for a processor.
    """

    def __init__(self, pid: int, limit_s: float) -> None:
        self._pid = pid
        self._limit_s = limit_s
        self._begin = time.monotonic()

    def left(self) -> float:
        """Return the seconds that are left, as a lower bound: waiting for a processor adds to them; 0 when time is up."""
        elapsed = time.monotonic() - self._begin
        waited = min(waited_for_processor(self._pid), (MOST - 1) * self._limit_s)
        return max(0.0, self._limit_s + waited - elapsed)


def waited_for_processor(pid: int) -> float:
    """Return the seconds for which a process's main thread was runnable but waited for a processor.

    0 where the system does not report it (no `schedstat` in `/proc`).
    """
    try:
        _, waited, _ = (PROC / str(pid) / "schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return int(waited) / NANOSECONDS
