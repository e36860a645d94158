"""The count of steps by their size, and of what they computed.

Owns: `StepCounts`, an observer of the engine. Never does: export them. Called by: the engine core.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Self

from core.api.stats import SchedulerStats
from core.engine.observer import Engine, EngineObserver, EngineStart
from core.scheduler.step import Step
from core_observers.engine.work_counts import WorkCounts
from core_observers.step_sizes import STEP_BOUNDS


class StepCounts(EngineObserver):
    """The histogram of one engine's steps, and their work. row: see `core_observers.step_sizes`."""

    def __init__(self) -> None:
        self.row = [0] * (len(STEP_BOUNDS) + 2)
        self.work = WorkCounts()

    @classmethod
    def open(cls, start: EngineStart) -> Self:
        """Return the counter, which every engine has."""
        return cls()

    def attach(self, engine: Engine) -> None:
        """Read which windows the model has."""
        self.work = WorkCounts(group.window for group in engine.scheduler.kv.groups if group.window is not None)

    def report(self, stats: SchedulerStats) -> None:
        """Put copies of the counts into the statistics."""
        stats.step_sizes = list(self.row)
        stats.work = dict(self.work.counts)

    def finished(self, step: Step) -> None:
        """Count one step in the bucket of its size, and its work."""
        num_tokens = step.plan.total_num_tokens
        bucket = bisect_left(STEP_BOUNDS, num_tokens)
        self.row[bucket] += 1
        self.row[-1] += num_tokens
        self.work.add(step)
