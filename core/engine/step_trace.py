"""Tells of an executor's steps while they are computed.

Owns: `StepTrace`: which sequences the steps under way compute, by their handles, and how long they should take.
Never does: compute, or read what it told. Called by: the step queue of an engine process, around each step.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from core.api.messages import NO_HANDLE
from core.api.step_plan import StepPlan
from core.engine.breadcrumbs import Breadcrumbs

Predict = Callable[[StepPlan], float]
"""The seconds that a plan should take; infinite when nothing is known."""


def unknown(plan: StepPlan) -> float:
    """Nothing is known."""
    return math.inf


class StepTrace:
    """The steps of one executor. In a decode of the same sequences a step writes a few numbers and looks at none.

    crumbs:       where it tells of them.
    max_num_seqs: number of slots.
    predict:      asked for plans of another batch than the one before.
    """

    def __init__(self, crumbs: Breadcrumbs, max_num_seqs: int, predict: Predict = unknown) -> None:
        self._crumbs = crumbs
        self._predict = predict
        self._handle_of_slot = np.full(max_num_seqs, NO_HANDLE, np.int64)
        self._handles = b""
        self._predicted_s = math.inf
        self._under_way: deque[bytes] = deque()

    def begin(self, plan: StepPlan) -> None:
        """A plan is handed to the executor."""
        told: bytes | None = None
        if not plan.same_batch:
            self._look_at(plan)
            told = b"".join([*self._under_way, self._handles])
        self._under_way.append(self._handles)
        self._crumbs.begin_step(time.monotonic(), self._predicted_s, told)

    def end(self) -> None:
        """The oldest plan under way was computed, well or not."""
        if self._under_way:
            self._under_way.popleft()
        self._crumbs.end_step(time.monotonic(), len(self._under_way))

    def forget(self) -> None:
        """Nobody asks for the results of the plans under way."""
        self._under_way.clear()
        self._crumbs.end_step(time.monotonic(), 0)

    def _look_at(self, plan: StepPlan) -> None:
        for new in plan.new:
            self._handle_of_slot[new.slot] = new.request.handle
        self._handles = self._handle_of_slot[plan.slots].tobytes()
        self._predicted_s = self._predict(plan)
