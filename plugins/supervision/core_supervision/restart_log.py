"""Log of engine deaths and restarts, for health and metrics.

Owns: `RestartLog`: the number of restarts by cause, the latest deaths. Never does: restart. Called by: the recovery (writes),
health and metrics (read).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from core_supervision.death import CAUSES, of_rank

LATEST = 8


@dataclass(frozen=True, slots=True)
class PastDeath:
    """One death of an engine.

    cause: cause as in `core_supervision.death`.
    time: seconds since the epoch.
    rank: what happened to a rank of the engine, see `of_rank`; empty: nothing.
    """

    cause: str
    time: float
    rank: str = ""


class RestartLog:
    """The restarts of one server's engines.

    latest:       the newest `LATEST` deaths, oldest first.
    num_restarts: number of engines started in place of dead ones, by the cause of the death.
    paused_since: monotonic time since which requests wait for the next engine; None: they do not.
    on_recovered: called with the seconds of each pause after which requests continued.
    """

    def __init__(self) -> None:
        self.latest: deque[PastDeath] = deque(maxlen=LATEST)
        # Zeros from the start: a rate over a counter that first appears as 1 would never show the first restart.
        self.num_restarts: Counter[str] = Counter(dict.fromkeys(CAUSES, 0))
        self.paused_since: float | None = None
        self.on_recovered: Callable[[float], None] | None = None

    def died(self, cause: str, sentence: str = "", *, pauses: bool = True) -> None:
        """Record a death; a pause begins, unless there is one, or other engines compute (`pauses`). sentence: about it."""
        self.latest.append(PastDeath(cause, time.time(), of_rank(sentence)))
        if pauses and self.paused_since is None:
            self.paused_since = time.monotonic()

    def restarted(self, cause: str) -> None:
        """Count a restart after a death of this cause."""
        self.num_restarts[cause] += 1

    def recovered(self) -> float:
        """End the pause, because all requests continue. Returns its seconds."""
        seconds = self.paused_s
        self.paused_since = None
        if self.on_recovered is not None:
            self.on_recovered(seconds)
        return seconds

    @property
    def paused_s(self) -> float:
        """Seconds of the present pause; 0.0 without one."""
        return 0.0 if self.paused_since is None else time.monotonic() - self.paused_since
