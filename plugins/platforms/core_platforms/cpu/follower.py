"""The number of compute threads follows the process's share of the machine while the engine runs.

Owns: a thread that checks about once a second and resizes the pool between two of its calls; results do not depend on
the size. Never does: run when the user set the number of threads or their processors. Called by: the runtime.
"""

from __future__ import annotations

import logging
import threading
import time
from types import ModuleType

from core_platforms.cpu.processors import default_threads, usable_processors
from core_platforms.cpu.received import Account, account, compute_threads, held_back

log = logging.getLogger(__name__)
INTERVAL_S = 1.0
FIRST_RETRY_S = 4.0
LONGEST_RETRY_S = 64.0
"""Seconds until all threads are tried again, after some were dropped because the system throttled them: first the short time,
then twice as long each time. Two threads on one processor for a second look like a quota; that must not halve the speed
for a minute, as it once did in a benchmark.
"""
POOL_THREAD = "core-compute"


class Follower:
    """Background thread that resizes the pool; owned by the runtime.

    native: the extension that owns the pool. threads: the full number of threads. caller: id of the thread that
    computes with them.

    It acts on changes only: a size set by anyone else stays until the share changes.
    """

    def __init__(self, native: ModuleType, threads: int, caller: int) -> None:
        self._native = native
        self._caller = caller
        self._wanted = threads
        self._most: int | None = None
        self._retry_at = 0.0
        self._pause = FIRST_RETRY_S
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="core-follow-share", daemon=True)
        self._ids: list[int] = []
        self._before = Account()
        self._looked_at = 0.0

    def start(self) -> None:
        """Start the background thread."""
        self._remember()
        self._thread.start()

    def close(self) -> None:
        """Stop the background thread; returns when a resize in progress is done."""
        self._ended.set()
        self._thread.join()

    def look(self) -> None:
        """Measure once, and resize the pool if the share has changed."""
        self._judge(time.monotonic())
        wanted = default_threads()
        if self._most is not None:
            wanted = min(wanted, self._most)
        if wanted != self._wanted:
            self._native.pool_init(wanted)
            log.info(
                "Compute threads: %d instead of %d, as the share of the machine has changed.", wanted, self._wanted
            )
            self._wanted = wanted
        self._remember()

    def _judge(self, now: float) -> None:
        """Set the largest number of threads that pays, from the processor time that the present ones received."""
        spent = account(self._ids, usable_processors()).since(self._before)
        got = held_back(spent, now - self._looked_at)
        if got is not None and self._wanted > 1:
            self._most = max(round(got), 1)
            self._retry_at = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_RETRY_S)
        elif now >= self._retry_at:
            if self._most is None:  # all of them have had their time
                self._pause = FIRST_RETRY_S
            self._most = None

    def _remember(self) -> None:
        self._ids = [self._caller, *compute_threads(POOL_THREAD)]
        self._before = account(self._ids, usable_processors())
        self._looked_at = time.monotonic()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self.look()
