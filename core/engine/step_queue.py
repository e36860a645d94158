"""Queues of steps between the engine core and an executor.

Owns: `Trace`, which an observer implements; `StepQueue`, which gives every executor the same two operations: submit a plan,
wait for its result. Never does: plan, or judge a failure. Called by: the engine core.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from core.api.kv_transfer import KVTransfers, Page
from core.api.step_plan import StepPlan, StepResult
from core.engine.executor import Executor, QueueingExecutor
from core.scheduler.step_cost import StepCost

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Trace(Protocol):
    """Receives the begin and end of each step, in the thread that computes it; implemented by an observer.

    cost: cost model of steps; the scheduler plans with it.
    """

    cost: StepCost

    def begin(self, plan: StepPlan) -> None:
        """Record that a plan is passed to the executor."""
        ...

    def end(self) -> None:
        """Record that the oldest plan in flight has ended, successfully or not."""
        ...

    def forget(self) -> None:
        """Drop all plans in flight, whose results are not needed any more."""
        ...


class StepQueue:
    """Queue for an executor that only has `execute`: each step is computed when its result is requested.

    max_in_flight: number of steps that may be submitted before the result of the first is requested.
    lockstep:      whether steps that compute nothing are submitted too.
    apart:         see `Executor`; 0: a step may compute tokens that are still in flight.
    trace:         receives each step; None: there is none.
    """

    def __init__(self, executor: Executor, max_in_flight: int = 1, trace: Trace | None = None) -> None:
        self.executor = executor
        self.max_in_flight = max_in_flight
        self.trace = trace
        self.lockstep = bool(getattr(executor, "lockstep", False))
        self.apart = int(getattr(executor, "apart", 0))

    def submit(self, plan: StepPlan) -> object:
        """Submit a plan, to be computed after all earlier ones; returns a ticket. Errors are raised by `result`."""
        return plan

    def result(self, ticket: object) -> StepResult:
        """Wait for a step and return its result, in the order of the tickets. Raises what the executor raised."""
        return self._compute(cast(StepPlan, ticket))

    def give_up(self) -> None:
        """Abandon all submitted steps: their results are not needed, and steps that have not begun need not begin."""

    def beside(self, call: Callable[[], T]) -> T:
        """Call `call` between two steps, in the thread that computes them; returns its result."""
        return call()

    def copy(self, transfers: KVTransfers) -> list[Page] | None:
        """Make copies of KV blocks between steps; None when that failed."""
        try:
            return self.result(self.submit(StepPlan(transfers=transfers))).pages
        except Exception as error:
            logger.error("Cached KV blocks could not be copied.", exc_info=error)
            return None

    def close(self) -> None:
        """Wait for the step that is being computed. The executor stays open."""

    def _compute(self, plan: StepPlan) -> StepResult:
        if self.trace is None:
            return self.executor.execute(plan)
        self.trace.begin(plan)
        try:
            return self.executor.execute(plan)
        finally:
            self.trace.end()


class ThreadQueue(StepQueue):
    """Queue for an executor that only has `execute`: a thread computes steps while the engine's thread plans the next one."""

    def __init__(self, executor: Executor, trace: Trace | None = None) -> None:
        super().__init__(executor, max_in_flight=2, trace=trace)
        # A single thread: an executor computes one step after the other, and `beside` runs between two of them.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="step")
        self._series = 0
        self._failed_series = -1

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        """Have the thread compute a plan after all earlier ones; returns its future."""
        return self._thread.submit(self._run, plan, self._series)

    def result(self, ticket: object) -> StepResult:
        """Wait for the thread to compute a step. Raises what the executor raised."""
        return cast(Future[StepResult], ticket).result()

    def beside(self, call: Callable[[], T]) -> T:
        """Run `call` in the thread of the steps, after those submitted before."""
        return self._thread.submit(call).result()

    def give_up(self) -> None:
        """Start a new series, so that steps after a failed one are computed again."""
        self._series += 1

    def close(self) -> None:
        """Wait for the thread to end; nothing can be submitted any more."""
        self._thread.shutdown()

    def _run(self, plan: StepPlan, series: int) -> StepResult:
        # This thread may take the next plan before the engine has learned that this one failed. Such a plan builds on the
        # failed step, so it must not be computed; the engine starts a new series with `give_up`.
        if series == self._failed_series:
            raise RuntimeError("the step before this one failed")
        try:
            return self._compute(plan)
        except BaseException:
            self._failed_series = series
            raise


@dataclass(slots=True)
class Refused:
    """The ticket of a plan that the executor did not accept."""

    error: Exception


class OwnQueue(StepQueue):
    """Queue for an executor that has one itself."""

    def __init__(self, executor: QueueingExecutor, max_in_flight: int, trace: Trace | None = None) -> None:
        super().__init__(executor, max_in_flight, trace)
        self._queueing = executor

    def submit(self, plan: StepPlan) -> object:
        """Pass a plan to the executor's queue; a refusal is kept in the ticket."""
        if self.trace is not None:
            self.trace.begin(plan)
        try:
            return self._queueing.submit(plan)
        except Exception as error:
            return Refused(error)  # raised when the result of this step is due, since earlier steps may still succeed

    def result(self, ticket: object) -> StepResult:
        """Wait for the executor's queue. Raises what it raised, also at `submit`."""
        try:
            if isinstance(ticket, Refused):
                raise ticket.error
            return self._queueing.result(ticket)
        finally:
            if self.trace is not None:
                self.trace.end()

    def give_up(self) -> None:
        """Drop the trace of steps in flight; their tickets are never used."""
        if self.trace is not None:
            self.trace.forget()


def step_queue(executor: Executor, *, ahead: bool, trace: Trace | None = None) -> StepQueue:
    """Build the queue for an executor. ahead: whether steps may be planned before the previous result is known."""
    if isinstance(executor, QueueingExecutor) and executor.max_in_flight:
        return OwnQueue(executor, executor.max_in_flight if ahead else 1, trace)
    return ThreadQueue(executor, trace) if ahead else StepQueue(executor, trace=trace)
