"""A simulated wire between scheduler and worker, in one process.

Owns: `Wire` and `WiredExecutor`: every plan and every result is encoded and decoded, so the worker never sees an object
of the scheduler's, nor the scheduler one of the worker's. Never does: send anything. Called by: tests of schedulers and
executors, whose results must be the same with and without it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from core.api.step_plan import StepPlan, StepResult
from core.engine.executor import Executor
from core_kv_connectors.shared_pages import PagePart, PlacedTransfers, SharedPages
from core_runtime.executor.steps.plan_wire import PlanDecoder, PlanEncoder
from core_runtime.executor.steps.result_wire import decode_result, encode_result
from core_supervision.link.anonymous_file import anonymous_file


class Wire:
    """Both ends of a simulated wire. page_bytes: bytes of a KV page, which both ends see in shared memory.

    num_steps: number of plans sent.
    num_same_batch: plans sent as a repetition of the previous batch.
    """

    def __init__(self, page_bytes: int) -> None:
        self.num_steps = 0
        self.num_same_batch = 0
        descriptor = anonymous_file("core-wire", 0)
        weakref.finalize(self, os.close, descriptor)
        self._pages = SharedPages(descriptor, page_bytes)
        self._encoder = PlanEncoder()
        self._decoder = PlanDecoder(PagePart(descriptor, page_bytes, 0, page_bytes))

    def carry(self, plan: StepPlan, execute: Callable[[StepPlan], StepResult]) -> StepResult:
        """Execute a plan at the other end."""
        if plan.transfers is not None:
            plan = replace(plan, transfers=self._pages.placed(plan.transfers))
        there = self._decoder.decode(self._encoder.encode(plan))
        self.num_steps += 1
        self.num_same_batch += there.same_batch
        result = execute(there)
        if isinstance(there.transfers, PlacedTransfers) and result.pages is not None:
            for page, place in zip(result.pages, there.transfers.into, strict=True):
                place[:] = page  # doubles of executors save to memory of their own
        return decode_result(encode_result(result, there), plan)


class WiredExecutor:
    """An executor behind a wire. Only its steps are wrapped; everything else is the inner executor's."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.wire = Wire(inner.page_bytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute one step at the other end."""
        return self.wire.carry(plan, self.inner.execute)


def wired(execute: Callable[[Any, StepPlan], StepResult]) -> Callable[[Any, StepPlan], StepResult]:
    """Put the method `execute` of an executor class behind a wire; each object has its own, as its attribute `wire`."""

    def through_wire(executor: Any, plan: StepPlan) -> StepResult:
        wire: Wire | None = vars(executor).get("wire")
        if wire is None:
            wire = vars(executor)["wire"] = Wire(executor.page_bytes)
        return wire.carry(plan, lambda there: execute(executor, there))

    return through_wire
