"""Compute threads follow the process's share of the machine while the engine runs.

Owns: a thread that looks about once a second and changes the pool's size between two calls of it; results do not depend on
the size. Never does: run where the number of threads or their processors were given. Called by: the runtime.
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
RETRY_S = 60.0
"""After threads were given up because they were held back: when all of them are tried again."""
POOL_THREAD = "core-compute"


class Follower:
    """native: the extension whose pool it is. threads: how many there are. caller: id of the thread that computes with them.

    It acts on changes alone: whoever sets another size keeps it until the share changes.
    """

    def __init__(self, native: ModuleType, threads: int, caller: int) -> None:
        self._native = native
        self._caller = caller
        self._wanted = threads
        self._most: int | None = None
        self._retry_at = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="core-follow-share", daemon=True)
        self._ids: list[int] = []
        self._before = Account()
        self._looked_at = 0.0

    def start(self) -> None:
        """Begin to look."""
        self._remember()
        self._thread.start()

    def close(self) -> None:
        """Look no more; returns when a change under way is done."""
        self._ended.set()
        self._thread.join()

    def look(self) -> None:
        """One look, and the change that follows from it."""
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
        """Set the most threads that are worth having, by what the present ones got."""
        spent = account(self._ids, usable_processors()).since(self._before)
        got = held_back(spent, now - self._looked_at)
        if got is not None and self._wanted > 1:
            self._most = max(round(got), 1)
            self._retry_at = now + RETRY_S
        elif now >= self._retry_at:
            self._most = None

    def _remember(self) -> None:
        self._ids = [self._caller, *compute_threads(POOL_THREAD)]
        self._before = account(self._ids, usable_processors())
        self._looked_at = time.monotonic()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self.look()
