"""Statistics of an engine's work, accumulated across the deaths of engines.

Owns: `StatTotals`: the latest state, and counters that continue when an engine's own restart at zero. Never does: count
an engine's work. Called by: `AsyncEngine` and its intake.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import msgspec

from core.api.stats import SchedulerStats

STATES = (
    "num_running",
    "num_waiting",
    "num_deferred",
    "kv_cache_usage",
    "kv_residency",
    "spec_off",
    "weight_version",
    "sleep_level",
    "is_paused",
    "utility",
    "utility_since",
    "phase",
    "holders",
    "adapters_number",
    "kv_leases",
)
"""Fields that describe the current engine alone.

All other fields are totals: numbers, rows of them, or numbers by name.
"""


class StatTotals:
    """The totals over all engines of one client. latest: the state after the latest step, with these totals."""

    def __init__(self) -> None:
        self.latest = SchedulerStats()
        self._past: dict[str, Any] = {}
        self._num_overdue = 0

    def take(self, stats: SchedulerStats) -> None:
        """Replace the engine's own totals in a step's statistics by those of all engines."""
        for name, count in self._past.items():
            together = added(count, getattr(stats, name))
            setattr(stats, name, together)
        stats.num_timeouts += self._num_overdue
        self.latest = stats

    def timed_out(self, num_requests: int) -> None:
        """Count requests that timed out here, and which no engine has counted."""
        self._num_overdue += num_requests
        self.latest.num_timeouts += num_requests

    def end_engine(self, num_waiting: int) -> None:
        """Note the death of an engine. num_waiting: number of live requests."""
        last = msgspec.structs.asdict(self.latest)
        totals = {name: count for name, count in last.items() if name not in STATES}
        self.latest = SchedulerStats(num_waiting=num_waiting, **totals)
        # `take` adds these to the statistics of the next engine.
        totals["num_timeouts"] -= self._num_overdue
        self._past = totals


def added(past: Any, present: Any) -> Any:
    """Add two values: numbers, rows of numbers, or numbers by name."""
    if isinstance(present, int | float):
        return past + present
    if isinstance(present, list):
        pairs = zip_longest(past, present, fillvalue=0)
        return [before + now for before, now in pairs]
    return {name: past.get(name, 0) + present.get(name, 0) for name in past | present}
