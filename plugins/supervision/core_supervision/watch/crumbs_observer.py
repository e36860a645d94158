"""Observer that records an engine's steps and utilities for its owner, which reads them after a death or during a silence.

Owns: `CrumbsObserver`, which writes them. Never does: interpret or read them. Called by: the engine core and its step queue, in
a process whose owner passed a file for them.
"""

from __future__ import annotations

import time
from typing import Self

from core.engine.observer import EngineObserver, EngineStart
from core_supervision.watch.breadcrumbs import Breadcrumbs
from core_supervision.watch.step_trace import StepTrace


class CrumbsObserver(EngineObserver):
    """The records of one engine. crumbs: memory for utilities. trace: records of steps in the same memory."""

    def __init__(self, crumbs: Breadcrumbs, trace: StepTrace) -> None:
        self.trace = trace
        self._crumbs = crumbs

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Make the observer; None when no owner reads the records."""
        if start.steps_file is None:
            return None
        scheduler = start.config.scheduler
        crumbs = Breadcrumbs(start.steps_file, start.epoch)
        learns = not scheduler.learns_costs  # otherwise the scheduler does, from steps of all kinds
        return cls(crumbs, StepTrace(crumbs, scheduler.max_num_seqs, learns=learns))

    def calling(self, method: str) -> None:
        """Record the beginning of a utility, or with an empty `method` its end."""
        if method:
            self._crumbs.begin_utility(method, time.monotonic())
        else:
            self._crumbs.end_utility()
