"""The state canary as an observer of an engine.

Owns: `CanaryObserver`: when the canary compares which part, and the times of a start. Never does: compare
(`core_observers.engine.canary` does), or keep a run (`core_observers.runs` does). Called by: the engine core.
"""

from __future__ import annotations

import itertools
import logging
import time
from pathlib import Path
from statistics import median
from typing import Self

from core.api.errors import UserError
from core.engine.observer import Engine, EngineObserver, EngineStart
from core.scheduler.step import Step
from core_observers.engine.canary import Canary, Record

logger = logging.getLogger(__name__)


class CanaryObserver(EngineObserver):
    """The observer that compares before the first request, and the rest in idle time."""

    order = 10  # the probe must be computed before the lifecycle observer puts the engine back to sleep

    _engine: Engine
    _canary: Canary | None = None

    def __init__(self) -> None:
        self._opened = time.perf_counter()
        self._loaded = 0.0
        self._steps: list[float] | None = []

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Return the canary, if `--state-canary` is given."""
        return None if start.config.state_canary is None else cls()

    def attach(self, engine: Engine) -> None:
        """Store the engine that computes the probe."""
        self._engine = engine
        self._loaded = time.perf_counter() - self._opened

    def before_first(self) -> None:
        """Run the comparisons before the first request, and add a good start to the runs.

        Raises StateError, UserError for a directory that cannot be used.
        """
        engine = self._engine
        self._canary = Canary.open(engine.config, engine.executor)
        if self._canary is not None:
            begin = time.perf_counter()
            found = self._canary.check(engine.compute, engine.config)
            self._keep(found, begin)
        self._steps = None

    def finished(self, step: Step) -> None:
        """Note when a step of the probe ended."""
        if self._steps is not None:
            self._steps.append(time.perf_counter())

    def idle(self) -> int | None:
        """Compare a little more. Raises StateError for damage."""
        if self._canary is None or not self._canary.is_pending:
            return None
        self._canary.go_on()
        return 0

    def _keep(self, found: Record, begin: float) -> None:
        """Add this start to the runs of its model. What cannot be kept costs only the history, and is a warning."""
        # Imported here: every engine imports this module, and few have a canary.
        from core_observers.runs.book import RunBook
        from core_observers.runs.compare import difference
        from core_observers.runs.run import Times, run_of, runs_key

        config = self._engine.config
        assert config.state_canary is not None
        if config.data_parallel_rank:
            return  # the first engine of a group keeps the start of all
        ends = self._steps or [begin]
        steps = [late - early for early, late in itertools.pairwise(ends)]
        times = Times(load=self._loaded, prompt=ends[0] - begin, step=median(steps) if steps else 0.0)
        book = RunBook(Path(config.state_canary), runs_key(config))
        try:
            run = run_of(config, self._engine.executor.numerics, found.tokens, found.logprobs, times)
            before = book.add(run)
        except (OSError, UserError) as error:
            logger.warning("State canary: this start is not kept for `core plugins doctor`: %s", error)
            return
        changed = None if before is None else difference(before, run)
        if before is not None and changed is not None and before.packages != run.packages:
            logger.warning(
                "State canary: %s since run %d, when other plugins were in use; `core plugins doctor` with the "
                "arguments of this start finds out which of them did it.",
                changed,
                before.number,
            )
