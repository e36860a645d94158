"""How long a process is waited for: seconds in which it could run. On a busy machine it may not get a processor for long.

Owns: that clock. Never does: end a process. Called by: `core.plugin.rehearsal` and its helper process,
`core_kit.runner`.
"""

from __future__ import annotations

import time
from pathlib import Path

MOST = 6
"""Times its limit that a process is waited for, however little of the processors it gets."""
NANOSECONDS = 1e9
PROC = Path("/proc")


class Patience:
    """Begins now. pid: of the process. limit_s: seconds in which it could run."""

    def __init__(self, pid: int, limit_s: float) -> None:
        self._pid = pid
        self._limit_s = limit_s
        self._begin = time.monotonic()

    def left(self) -> float:
        """At least so many seconds are left; 0 when it is over."""
        elapsed = time.monotonic() - self._begin
        waited = min(waited_for_processor(self._pid), (MOST - 1) * self._limit_s)
        return max(0.0, self._limit_s + waited - elapsed)


def waited_for_processor(pid: int) -> float:
    """Seconds in which the main thread of a process wanted to run and others ran; 0 where the system does not tell."""
    try:
        _, waited, _ = (PROC / str(pid) / "schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return int(waited) / NANOSECONDS
