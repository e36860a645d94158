"""The counts of recorded steps among an engine's statistics.

Owns: `Recordings`, an observer that adds them up over changes of weights, each of which begins with a new recorder. Never does:
record, or count (the executor's recorder does). Called by: the engine core.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Self

from core.api.stats import SchedulerStats
from core.engine.observer import Engine, EngineObserver, EngineStart
from core_observers.families.recording_metrics import NAME
from core_observers.observer_settings import RECORDINGS


class Recordings(EngineObserver):
    """The counts of one engine."""

    order = 110  # after the count of steps, which makes the dictionary that both report in

    def __init__(self) -> None:
        self._before: Counter[str] = Counter()
        self._latest: dict[str, int] = {}

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Return the observer; None where recordings are not counted."""
        return None if start.config.plugins.arguments.get(RECORDINGS) is None else cls()

    def attach(self, engine: Engine) -> None:
        """Keep the executor."""
        self._executor: Any = engine.executor

    def report(self, stats: SchedulerStats) -> None:
        """Add the counts, of an executor that has them, to the work that the statistics tell of."""
        counts: dict[str, int] = getattr(self._executor, "recordings", {})
        if any(counts.get(name, 0) < count for name, count in self._latest.items()):
            self._before.update(self._latest)
        self._latest = dict(counts)
        total = self._before + Counter(counts)
        stats.work.update({NAME + name: count for name, count in total.items()})
