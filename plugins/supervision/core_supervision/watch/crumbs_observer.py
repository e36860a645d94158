"""Observer that records an engine's steps and utilities for its owner, which reads them after a death or during a silence, and
the wish of others that the process end.

Owns: `CrumbsObserver`, which writes them. Never does: interpret or read them. Called by: the engine core and its step queue, in
a process whose owner passed a file for them.
"""

from __future__ import annotations

import time
from typing import Self

from core.engine.observer import Engine, EngineObserver, EngineStart
from core.engine.step_queue import OwnQueue
from core_supervision.watch.breadcrumbs import Breadcrumbs
from core_supervision.watch.end_requests import record_end_requests
from core_supervision.watch.step_trace import StepTrace


class CrumbsObserver(EngineObserver):
    """The records of one engine. crumbs: memory for utilities. trace: records of steps in the same memory."""

    def __init__(self, crumbs: Breadcrumbs, trace: StepTrace) -> None:
        self.trace = trace
        self._crumbs = crumbs
        self._holds_steps = False

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Make the observer; None when no owner reads the records."""
        if start.steps_file is None:
            return None
        scheduler = start.config.scheduler
        crumbs = Breadcrumbs(start.steps_file, start.epoch)
        learns = not scheduler.learns_costs  # otherwise the scheduler does, from steps of all kinds
        return cls(crumbs, StepTrace(crumbs, scheduler.max_num_seqs, learns=learns))

    def attach(self, engine: Engine) -> None:
        """Note where the ends of steps are recorded."""
        # An `OwnQueue` records them when the engine's thread asks for the results, and that thread executes the utilities too.
        self._holds_steps = isinstance(engine.queue, OwnQueue)

    def before_first(self) -> None:
        """Take SIGTERM for a wish from now on; before, there is no request that could go on elsewhere."""
        record_end_requests(self._crumbs)

    def calling(self, method: str) -> None:
        """Record the beginning of a utility, or with an empty `method` its end."""
        if method:
            self._crumbs.begin_utility(method, time.monotonic(), holds_steps=self._holds_steps)
        else:
            self._crumbs.end_utility()
