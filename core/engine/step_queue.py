"""Steps on their way through an executor.

Owns: `Trace`, which an observer implements; `StepQueue`, which gives every executor the same two verbs: submit a plan, ask for
its result. Never does: plan, or judge a failure. Called by: the engine core.
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
    """Receives each step while it is computed, in the thread that computes it.

    cost: duration of steps, as far as it is known; the scheduler plans with it.
    """

    cost: StepCost

    def begin(self, plan: StepPlan) -> None:
        """A plan is handed to the executor."""
        ...

    def end(self) -> None:
        """The oldest plan under way was computed, well or not."""
        ...

    def forget(self) -> None:
        """The results of all plans under way were given up."""
        ...


class StepQueue:
    """Steps of an executor that only knows `execute`: each is computed when its result is asked for.

    max_in_flight: how many steps may be submitted before the result of the first is asked for.
    lockstep:      whether steps that compute nothing are submitted too.
    trace:         receives each step; None: there is none.
    """

    def __init__(self, executor: Executor, max_in_flight: int = 1, trace: Trace | None = None) -> None:
        self.executor = executor
        self.max_in_flight = max_in_flight
        self.trace = trace
        self.lockstep = bool(getattr(executor, "lockstep", False))

    def submit(self, plan: StepPlan) -> object:
        """Have a plan computed after all earlier ones; returns a ticket. Raises nothing of the executor's."""
        return plan

    def result(self, ticket: object) -> StepResult:
        """Wait for a step, in the order of the tickets. Raises what the executor raised."""
        return self._compute(cast(StepPlan, ticket))

    def give_up(self) -> None:
        """Nobody will ask for the results of the steps submitted: steps that have not begun need not begin."""

    def beside(self, call: Callable[[], T]) -> T:
        """Call something between two steps, in the thread that computes them, and wait for it."""
        return call()

    def copy(self, transfers: KVTransfers) -> list[Page] | None:
        """Make copies of KV blocks between steps; None when that failed."""
        try:
            return self.result(self.submit(StepPlan(transfers=transfers))).pages
        except Exception as error:
            logger.error("Cached KV blocks could not be copied.", exc_info=error)
            return None

    def close(self) -> None:
        """Wait for what is under way. The executor stays open."""

    def _compute(self, plan: StepPlan) -> StepResult:
        if self.trace is None:
            return self.executor.execute(plan)
        self.trace.begin(plan)
        try:
            return self.executor.execute(plan)
        finally:
            self.trace.end()


class ThreadQueue(StepQueue):
    """Steps of an executor that only knows `execute`, computed by a thread while the engine's own plans the next one."""

    def __init__(self, executor: Executor, trace: Trace | None = None) -> None:
        super().__init__(executor, max_in_flight=2, trace=trace)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="step")
        self._series = 0
        self._failed_series = -1

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        """As above."""
        return self._thread.submit(self._run, plan, self._series)

    def result(self, ticket: object) -> StepResult:
        """As above."""
        return cast(Future[StepResult], ticket).result()

    def beside(self, call: Callable[[], T]) -> T:
        """As above."""
        return self._thread.submit(call).result()

    def give_up(self) -> None:
        """As above: what is submitted from now on is a new series."""
        self._series += 1

    def close(self) -> None:
        """As above; nothing can be submitted any more."""
        self._thread.shutdown()

    def _run(self, plan: StepPlan, series: int) -> StepResult:
        # The engine hears of a failure later than this thread takes the next plan, which must not be begun then.
        if series == self._failed_series:
            raise RuntimeError("the step before this one failed")
        try:
            return self._compute(plan)
        except BaseException:
            self._failed_series = series
            raise


@dataclass(slots=True)
class Refused:
    """The ticket of a plan that the executor did not take."""

    error: Exception


class OwnQueue(StepQueue):
    """Steps of an executor with a queue of its own."""

    def __init__(self, executor: QueueingExecutor, max_in_flight: int, trace: Trace | None = None) -> None:
        super().__init__(executor, max_in_flight, trace)
        self._queueing = executor

    def submit(self, plan: StepPlan) -> object:
        """As above."""
        if self.trace is not None:
            self.trace.begin(plan)
        try:
            return self._queueing.submit(plan)
        except Exception as error:
            return Refused(error)  # told when it is this step's turn

    def result(self, ticket: object) -> StepResult:
        """As above."""
        try:
            if isinstance(ticket, Refused):
                raise ticket.error
            return self._queueing.result(ticket)
        finally:
            if self.trace is not None:
                self.trace.end()

    def give_up(self) -> None:
        """As above."""
        if self.trace is not None:
            self.trace.forget()


def step_queue(executor: Executor, *, ahead: bool, trace: Trace | None = None) -> StepQueue:
    """The queue for an executor. ahead: whether steps may be planned before the result of the one before is there."""
    if isinstance(executor, QueueingExecutor) and executor.max_in_flight:
        return OwnQueue(executor, executor.max_in_flight if ahead else 1, trace)
    return ThreadQueue(executor, trace) if ahead else StepQueue(executor, trace=trace)
