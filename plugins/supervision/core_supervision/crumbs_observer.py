"""Notes of an engine's steps and utilities for its owner, who reads them after a death and while the engine says nothing.

Owns: `CrumbsObserver`, which writes them. Never does: judge or read them. Called by: the engine core and its step queue, in a
process whose owner gave it a file for such notes.
"""

from __future__ import annotations

import time
from typing import Self

from core.engine.observer import EngineObserver, EngineStart
from core_supervision.breadcrumbs import Breadcrumbs
from core_supervision.step_trace import StepTrace


class CrumbsObserver(EngineObserver):
    """crumbs: for utilities. trace: for steps, over the same memory."""

    def __init__(self, crumbs: Breadcrumbs, trace: StepTrace) -> None:
        self.trace = trace
        self._crumbs = crumbs

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """The notes, where the owner reads them."""
        if start.steps_file is None:
            return None
        scheduler = start.config.scheduler
        crumbs = Breadcrumbs(start.steps_file, start.epoch)
        learns = not scheduler.learns_costs  # otherwise the scheduler does, from steps of all kinds
        return cls(crumbs, StepTrace(crumbs, scheduler.max_num_seqs, learns=learns))

    def calling(self, method: str) -> None:
        """Note the beginning and the end of a utility."""
        if method:
            self._crumbs.begin_utility(method, time.monotonic())
        else:
            self._crumbs.end_utility()
