"""The statistics of a group of engines as those of one.

Owns: `GroupTotals`. Never does: count. Called by: `AsyncEngine`, as the totals of its client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.api.stats import SchedulerStats
from core_frontend.group.member import Member
from core_frontend.stat_totals import STATES, StatTotals, added

SUMMED = ("num_running", "num_waiting", "num_deferred", "adapters_number")
"""States that are added up; of the other ones, see `_together`, an unusual one of any engine shows."""


class GroupTotals(StatTotals):
    """The totals over all engines of a group, computed when they are read. members: those of the group."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        super().__init__()

    @property
    def latest(self) -> SchedulerStats:
        """The state of all engines together."""
        rows = [member.totals.latest for member in self._members]
        num_running = sum(member.state != "ended" for member in self._members)
        stats = together(rows, max(num_running, 1))
        stats.num_timeouts += self._num_overdue
        return stats

    @latest.setter
    def latest(self, stats: SchedulerStats) -> None:
        """Do nothing: each member's own totals hold what its engine reported."""

    @property
    def engines(self) -> list[SchedulerStats]:
        """The state of each engine."""
        return [member.totals.latest for member in self._members]

    def take(self, stats: SchedulerStats) -> None:
        """Do nothing: the group gives the statistics of each engine to its member."""

    def timed_out(self, num_requests: int) -> None:
        """Count requests that timed out here, and which no engine has counted."""
        self._num_overdue += num_requests

    def end_engine(self, num_waiting: int) -> None:
        """Do nothing: the group ends the totals of the engine that died."""


def together(rows: Sequence[SchedulerStats], num_running: int = 0) -> SchedulerStats:
    """Return the statistics of several engines as those of one. num_running: engines among them that have a cache; 0: all."""
    found: dict[str, Any] = {}
    for name in SchedulerStats.__struct_fields__:
        values = [getattr(stats, name) for stats in rows]
        if name == "kv_cache_usage":
            found[name] = sum(values) / (num_running or len(values))
        elif name in STATES and name not in SUMMED:
            found[name] = _together(name, values)
        else:
            whole = values[0]
            for value in values[1:]:
                whole = added(whole, value)
            found[name] = whole
    return SchedulerStats(**found)


def _together(name: str, values: Sequence[Any]) -> Any:
    """Return the first value that is not the usual one; the usual one where all are."""
    usual = getattr(SchedulerStats(), name)
    return next((value for value in values if value != usual), usual)
