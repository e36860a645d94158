"""Processor time that compute threads received, compared with the time they could have used, without torch.

Owns: reading the scheduler's account of each thread and of the machine. Never does: change the number of threads.
Called by: `follower`, about once a second. Linux only; elsewhere no account is available.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
NANOSECONDS = 1e9
IDLE_FIELDS = (4, 5)
"""Fields of a /proc/stat line: idle, and waiting for a disk."""


@dataclass(slots=True, frozen=True)
class Account:
    """Processor-time totals in seconds since the start.

    ran: time the threads ran.
    waited: time they were runnable but not running.
    idle: idle time of the processors that they may use, summed.
    """

    ran: float = 0.0
    waited: float = 0.0
    idle: float = 0.0

    def since(self, before: Account) -> Account:
        """Return the difference to an earlier account."""
        return Account(self.ran - before.ran, self.waited - before.waited, self.idle - before.idle)


def account(threads: Sequence[int], processors: Sequence[int]) -> Account:
    """Read the account of this process's threads with these ids; threads that have ended count as zero."""
    ran = 0
    waited = 0
    for thread in threads:
        words = _read(PROC / f"self/task/{thread}/schedstat").split()
        if len(words) >= 2:
            ran += int(words[0])
            waited += int(words[1])
    return Account(ran / NANOSECONDS, waited / NANOSECONDS, _idle(processors))


def held_back(spent: Account, seconds: float) -> float | None:
    """Return the processors' worth of time that the threads received, when they were throttled while processors were
    idle; else None.

    Throttling with idle processors is the sign of a quota that this process cannot read. Competing programs are
    different: they leave no idle processors, and fewer threads would only get a smaller share.
    spent: account of the last `seconds`.
    """
    wanted = spent.ran + spent.waited
    busy = wanted > seconds / 2
    waited = spent.waited > wanted / 4
    idle = spent.idle > spent.waited / 2
    return spent.ran / seconds if busy and waited and idle else None


def compute_threads(name: str) -> list[int]:
    """Return the ids of this process's threads with the given name."""
    found: list[int] = []
    for folder in (PROC / "self/task").glob("*"):
        if _read(folder / "comm").strip() == name:
            found.append(int(folder.name))
    return found


def _idle(processors: Sequence[int]) -> float:
    wanted = {f"cpu{processor}" for processor in processors}
    ticks = 0
    for line in _read(PROC / "stat").splitlines():
        words = line.split()
        if words[:1] and words[0] in wanted:
            ticks += sum(int(words[field]) for field in IDLE_FIELDS)
    return ticks / os.sysconf("SC_CLK_TCK")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
