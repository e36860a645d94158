"""How much of the time some process of the machine waited for a processor: whether a figure was disturbed.

Owns: the reading of the kernel's pressure file. Never does: judge. Called by: the command, beside each row.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

FILE = Path("/proc/pressure/cpu")


class Pressure:
    """Measures from its creation, and then from one question to the next."""

    def __init__(self) -> None:
        self._before = _now()

    def share(self) -> float | None:
        """Share of the time since the last call in which somebody waited; None on kernels that do not tell."""
        before, self._before = self._before, _now()
        if before is None or self._before is None:
            return None
        return round((self._before[1] - before[1]) / max(self._before[0] - before[0], 1e-9), 3)


def _now() -> tuple[float, float] | None:
    """(clock, seconds of waiting so far)."""
    try:
        found = re.search(r"some .*total=(\d+)", FILE.read_text())
    except OSError:
        return None
    return (time.perf_counter(), int(found[1]) / 1e6) if found else None
