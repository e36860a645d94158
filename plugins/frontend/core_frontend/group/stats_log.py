"""The lines that a group of engines logs every few seconds.

Owns: `GroupStatsLog`: one line for each engine, or one for all (`--aggregate-engine-logging`). Called by: the group.
"""

from __future__ import annotations

from core.api.config import EngineConfig
from core.api.messages import EngineOutputs
from core_frontend.group.totals import GroupTotals
from core_frontend.stats_log import StatsLog


class GroupStatsLog:
    """The logs of the engines of one group. totals: of the group."""

    def __init__(self, config: EngineConfig, totals: GroupTotals) -> None:
        whole = StatsLog(name="All engines: ", stats=lambda: totals.latest)
        self._whole = whole if config.aggregate_stats_log else None
        first = config.data_parallel_rank
        self._each = [StatsLog(name=f"Engine {first + index}: ") for index in range(config.data_parallel_size)]

    def record(self, message: EngineOutputs, engine: int) -> None:
        """Count one step of an engine."""
        if self._whole is not None:
            self._whole.record(message)
        else:
            self._each[engine].record(message)
