"""What is told of an engine's work, across the deaths of engines.

Owns: `StatTotals`: the latest state, and counters that go on when an engine's own begin again. Never does: count what engines
do. Called by: `AsyncEngine` and its intake.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import msgspec

from core.api.messages import SchedulerStats

STATES = ("num_running", "num_waiting", "kv_cache_usage", "kv_residency", "spec_off")
"""What is of the present engine alone. All other fields are totals."""


class StatTotals:
    """latest: the state after the latest step, with the totals of all engines."""

    def __init__(self) -> None:
        self.latest = SchedulerStats()
        self._past: dict[str, Any] = {}
        self._num_overdue = 0

    def take(self, stats: SchedulerStats) -> None:
        """A step's statistics, in which the engine's own totals become those of all engines."""
        for name, past in self._past.items():
            setattr(stats, name, _together(getattr(stats, name), past))
        stats.num_timeouts += self._num_overdue
        self.latest = stats

    def timed_out(self, num_requests: int) -> None:
        """The time of requests was up, and no engine has counted them."""
        self._num_overdue += num_requests
        self.latest.num_timeouts += num_requests

    def end_engine(self, num_waiting: int) -> None:
        """An engine has died. num_waiting: requests that live."""
        last = msgspec.structs.asdict(self.latest)
        totals = {name: count for name, count in last.items() if name not in STATES}
        self.latest = SchedulerStats(num_waiting=num_waiting, **totals)
        totals["num_timeouts"] -= self._num_overdue
        self._past = totals


def _together(now: Any, past: Any) -> Any:
    """A counter, or the counters of a list or of a mapping, of two engines."""
    if isinstance(now, list):
        return [ours + theirs for ours, theirs in zip_longest(now, past, fillvalue=0)]
    if isinstance(now, dict):
        return {name: now.get(name, 0) + past.get(name, 0) for name in {**past, **now}}
    return now + past
