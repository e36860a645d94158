"""Trace of an executor's steps while they are computed.

Owns: `StepTrace`: handles of the sequences in the steps in flight, their predicted durations, and the cost model for the next
engine. Never does: compute, or read its records. Called by: the step queue of an engine process, around each step; an observer
provides it (`core_supervision.watch.crumbs_observer`).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from core.api.messages import NO_HANDLE
from core.api.step_plan import StepPlan
from core.scheduler.step_cost import StepCost, StepWork, work_of

NUM_LEARNED = 8
"""Number of steps that the cost model must have learned from before its predictions count, and between two records of it for
the next engine."""


class Crumbs(Protocol):
    """Memory that outlives the process; see `core_supervision.watch.breadcrumbs`."""

    @property
    def learned(self) -> Sequence[float]:
        """The state of the cost model that this engine, or an earlier one, has stored."""
        ...

    def learn(self, values: tuple[float, ...]) -> None:
        """Store the state of the cost model."""
        ...

    def begin_step(self, begin_s: float, predicted_s: float, handles: bytes | None) -> None:
        """Record the beginning of a step. handles: handles of its sequences; None: those of the previous step."""
        ...

    def end_step(self, end_s: float, num_under_way: int = 0) -> None:
        """Record the end of the oldest step, successful or not."""
        ...


class StepTrace:
    """The steps of one executor. A decode of the same sequences is not examined: it is expected to take as long as the
    previous step, and nothing is learned from it.

    crumbs:       memory to which it writes.
    max_num_seqs: number of slots.
    cost:         cost model of steps, restored from the previous engine.
    learns:       whether `cost` learns from the steps here; False: the scheduler teaches it.
    """

    def __init__(self, crumbs: Crumbs, max_num_seqs: int, *, learns: bool = True) -> None:
        self.cost = StepCost.restored(crumbs.learned)
        self._crumbs = crumbs
        self._learns = learns
        self._num_left = self.cost.num_observed
        self._work: StepWork | None = None
        self._begin_s = 0.0
        self._handle_of_slot = np.full(max_num_seqs, NO_HANDLE, np.int64)
        self._handles = b""
        self._predicted_s = math.inf
        self._under_way: deque[bytes] = deque()

    def begin(self, plan: StepPlan) -> None:
        """Record a plan that is passed to the executor."""
        told: bytes | None = None
        if not plan.same_batch:
            self._look_at(plan)
            told = b"".join([*self._under_way, self._handles])
        self._under_way.append(self._handles)
        self._begin_s = time.monotonic()
        self._crumbs.begin_step(self._begin_s, self._predicted_s, told)

    def end(self) -> None:
        """Record the end of the oldest plan in flight, successful or not."""
        if self._under_way:
            self._under_way.popleft()
        now = time.monotonic()
        self._crumbs.end_step(now, len(self._under_way))
        # With further steps in flight the time since the last begin is not that of this step.
        if self._work is not None and not self._under_way:
            self.cost.observe(self._work, now - self._begin_s)
            self._work = None

    def forget(self) -> None:
        """Drop all plans in flight, whose results are not needed any more."""
        self._under_way.clear()
        self._work = None
        self._crumbs.end_step(time.monotonic(), 0)

    def _look_at(self, plan: StepPlan) -> None:
        cost = self.cost
        if cost.num_observed - self._num_left >= NUM_LEARNED:
            self._num_left = cost.num_observed
            self._crumbs.learn(cost.state())
        for new in plan.new:
            self._handle_of_slot[new.slot] = new.request.handle
        self._handles = self._handle_of_slot[plan.slots].tobytes()
        num_decodes = int(np.count_nonzero(plan.query_lens == 1))
        work = work_of(plan, num_decodes)
        if self._learns and plan.total_num_tokens:
            self._work = work
        self._predicted_s = math.inf
        if cost.num_observed >= NUM_LEARNED:
            self._predicted_s = cost.margin * cost.predict(*work)
