"""Counters that go on when an engine's own begin again.

Owns: `StatTotals`. Never does: count. Called by: `AsyncEngine`.
"""

from __future__ import annotations

import msgspec

from core.api.messages import SchedulerStats

STATES = ("num_running", "num_waiting", "kv_cache_usage", "kv_residency")
"""What is of the present engine alone. All other fields are totals."""


class StatTotals:
    """What engines had counted that have died."""

    def __init__(self) -> None:
        self._past: dict[str, int] = {}

    def add_to(self, stats: SchedulerStats) -> None:
        """Make an engine's own totals those of all engines."""
        for name, count in self._past.items():
            setattr(stats, name, getattr(stats, name) + count)

    def end_engine(self, last: SchedulerStats, num_overdue: int, num_waiting: int) -> SchedulerStats:
        """An engine has died. Returns the state until the next one runs.

        last: with the totals of all engines so far. num_overdue: those of its timeouts that are counted elsewhere.
        num_waiting: requests that live.
        """
        totals = {name: count for name, count in msgspec.structs.asdict(last).items() if name not in STATES}
        paused = SchedulerStats(num_waiting=num_waiting, **totals)
        totals["num_timeouts"] -= num_overdue
        self._past = totals
        return paused
