"""The count of steps by their size.

Owns: `StepCounts`, an observer of the engine. Never does: export them. Called by: the engine core.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Self

from core.api.stats import SchedulerStats
from core.engine.observer import EngineObserver, EngineStart
from core.scheduler.step import Step
from core_observers.step_sizes import STEP_BOUNDS


class StepCounts(EngineObserver):
    """The histogram of one engine's steps. row: see `core_observers.step_sizes`."""

    def __init__(self) -> None:
        self.row = [0] * (len(STEP_BOUNDS) + 2)

    @classmethod
    def open(cls, start: EngineStart) -> Self:
        """Return the counter, which every engine has."""
        return cls()

    def report(self, stats: SchedulerStats) -> None:
        """Put a copy of the row into the statistics."""
        stats.step_sizes = list(self.row)

    def finished(self, step: Step) -> None:
        """Count one step in the bucket of its size."""
        num_tokens = step.plan.total_num_tokens
        bucket = bisect_left(STEP_BOUNDS, num_tokens)
        self.row[bucket] += 1
        self.row[-1] += num_tokens
