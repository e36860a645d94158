"""When the machine itself stood still: a timer of real-time priority on each processor, in processes of their own.

Owns: those processes and the stalls that they saw. Never does: judge. Called by: the arena, for callbacks that took too long.

The processor clock of a thread also counts while the host of a virtual machine runs something else. On one with two
processors a loop that does nothing was charged 25 ms at once, and 59 ms, within five minutes. A process of real-time priority
comes before everything that a server does, so its timer is late when the machine stands still and at no other time. Where that
priority is not granted there are no stalls, and nothing is excused.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

PERIOD_S = 0.004
LATE_S = 0.002
PRIORITY = 50
Stall = tuple[float, float]
"""Begin and end in seconds since the epoch."""


class Metronome:
    """The stalls of each processor, by its number."""

    def __init__(self) -> None:
        self.stalls: dict[int, list[Stall]] = {}

    def stood_still(self, begin: float, end: float) -> float:
        """Seconds of this time in which a processor stood still, of the one for which they are most."""
        return max((sum(_shared(stall, begin, end) for stall in found) for found in self.stalls.values()), default=0.0)

    def longest(self) -> float:
        """Seconds of the longest stall so far."""
        return max((end - begin for found in self.stalls.values() for begin, end in found), default=0.0)

    def listen(self, processor: int, out: TextIO) -> None:
        """Keep what the process of one processor says, until it ends."""
        found = self.stalls.setdefault(processor, [])
        for line in out:
            begin, end = line.split()
            found.append((float(begin), float(end)))


def _shared(stall: Stall, begin: float, end: float) -> float:
    return max(0.0, min(stall[1], end) - max(stall[0], begin))


@contextmanager
def ticking() -> Iterator[Metronome]:
    """Watch every processor of this process while the body runs."""
    metronome, processes = Metronome(), []
    try:
        for processor in sorted(os.sched_getaffinity(0)):
            words = [sys.executable, "-m", "tests.attack.metronome", str(processor)]
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
            processes.append(process)
            assert process.stdout is not None
            threading.Thread(target=metronome.listen, args=(processor, process.stdout), daemon=True).start()
        yield metronome
    finally:
        for process in processes:
            process.kill()
            process.wait()


def tick(processor: int) -> None:
    """Print each time in which a timer of this processor was late. Returns when real-time priority is not granted."""
    try:
        os.sched_setaffinity(0, {processor})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except OSError:
        return
    parent = os.getppid()
    while os.getppid() == parent:
        due = time.monotonic() + PERIOD_S
        time.sleep(PERIOD_S)
        late = time.monotonic() - due
        if late > LATE_S:
            now = time.time()
            print(now - late, now, flush=True)


if __name__ == "__main__":
    tick(int(sys.argv[1]))
