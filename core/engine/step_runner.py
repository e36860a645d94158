"""Running of steps, from the plan to the results, and the handling of failures.

Owns: `StepRunner`: when a step is planned, submitted and finished, the count of faults, and the outputs of sequences that ended
outside a step. Never does: schedule, compute, or know its caller. Called by: the engine core, once a turn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from core.api.errors import EngineDeadError, PluginError
from core.api.messages import Begun, EngineOutput
from core.api.step_plan import StepResult
from core.engine.faults import Faults
from core.engine.step_queue import StepQueue
from core.plugin.table import PluginTable
from core.scheduler.results import StepOutputs
from core.scheduler.scheduler import Scheduler
from core.scheduler.step import Step

logger = logging.getLogger(__name__)

KV_WAIT_S = 0.005
"""Seconds that a step without anything to compute waits for keys and values that are being loaded. A request that arrives
meanwhile waits as long."""

StepHook = Callable[[Step], object]

T = TypeVar("T")


class StepRunner:
    """The steps of one scheduler and one queue, owned by the engine core.

    ended: outputs of sequences that ended outside a step. begun: sequences whose prompt has begun to be computed. The engine
    core moves both into its next message.

    submitted: called before a step is passed to the executor. finished: called after the results of a step that computed
    something were read.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        queue: StepQueue,
        plugins: PluginTable,
        faults: Faults,
        submitted: Sequence[StepHook],
        finished: Sequence[StepHook],
    ) -> None:
        self.ended: list[EngineOutput] = []
        self.begun: list[Begun] = []
        self._scheduler = scheduler
        self._queue = queue
        self._plugins = plugins
        self._faults = faults
        self._submitted = submitted
        self._finished = finished

    def guard(self, operation: Callable[[], T]) -> T | None:
        """Call an operation of the scheduler and return its result.

        An exception is a defect: it is logged, the sequence that was being handled ends, all others start over, and None is
        returned.

        Raises EngineDeadError when such defects do not end.
        """
        try:
            return operation()
        except Exception as raised:
            error = self._plugins.blamed(raised)
            self._faults.scheduler_broke(self._scheduler.current, error)
            logger.error("The scheduler met a defect; all requests but the one at work start over.", exc_info=error)
            self._queue.give_up()
            self.ended += self._scheduler.recover(error).records
            self._probe_if_wanted()
            return None

    def start_over(self) -> None:
        """Queue all sequences again, with their tokens and an empty cache; steps in flight count as never begun."""
        self._queue.give_up()
        self.ended += self._scheduler.start_over().records

    def plan_and_run(self) -> StepOutputs:
        """Plan and submit a step, and finish the oldest one when no further one may be planned.

        Raises EngineDeadError when the executor is broken or the scheduler makes no progress.
        """
        scheduler = self._scheduler
        step = self.guard(scheduler.schedule)
        if step is None:
            return StepOutputs()
        idle = step.is_idle and not scheduler.lockstep
        if not idle:
            self._submit(step)
        outputs = StepOutputs()
        num_in_flight = len(scheduler.in_flight)
        # An idle plan means that all sequences wait for results, so the oldest step is finished although more may be planned.
        if num_in_flight >= scheduler.max_in_flight or (idle and num_in_flight):
            outputs = self.finish_oldest()
        if idle:  # nothing was submitted, but outputs of sequences that ended outside a step are due
            outputs.records += self._finish(step, StepResult()).records
        self._watch_progress(step, outputs)
        return outputs

    def _submit(self, step: Step) -> None:
        if step.plan.new:
            now = time.time()
            self.begun += [Begun(new.request.handle, now) for new in step.plan.new]
        for submitted in self._submitted:
            submitted(step)
        try:
            # A Ctrl+C in a script may come at any moment, so it is unknown whether the step was submitted.
            step.ticket = self._queue.submit(step.plan)
        except BaseException:
            self._give_up()
            raise

    def finish_oldest(self) -> StepOutputs:
        """Wait for the oldest step and read its result; returns its outputs. Raises EngineDeadError for a broken executor."""
        step = self._scheduler.in_flight[0]
        try:
            result = self._queue.result(step.ticket)
        except EngineDeadError:  # no sequence of the step is at fault
            raise
        except Exception as error:
            return self._fail(step, error)
        except BaseException:
            self._give_up()
            raise
        return self._finish(step, result)

    def _finish(self, step: Step, result: StepResult) -> StepOutputs:
        outputs = self.guard(lambda: self._scheduler.finish(step, result))
        if outputs is None:
            return StepOutputs()
        # Only a step that computed something shows that the executor works; an idle one must not reset the count of faults.
        if step.plan.total_num_tokens:
            self._faults.went_well()
            for finished in self._finished:
                finished(step)
        return outputs

    def _fail(self, step: Step, error: Exception) -> StepOutputs:
        """Discard a failed step; the scheduler determines which sequence was at fault."""
        cause = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        self._queue.give_up()
        self._faults.step_failed(step.plan, cause, error)
        logger.error("A step of %d sequences failed.", len(step.plan.slots), exc_info=error)
        sentence = f"The engine failed while it computed this request ({cause}); see the log."
        outputs = self.guard(lambda: self._scheduler.fail(step, sentence))
        self._probe_if_wanted()
        return StepOutputs() if outputs is None else outputs

    def _give_up(self) -> None:
        """Abandon steps in flight after an interrupt by the user: done or not, they count as not done."""
        self._queue.give_up()
        self._scheduler.give_up()

    def _watch_progress(self, step: Step, outputs: StepOutputs) -> None:
        told = bool(outputs.records) or len(outputs.tokens) > 0
        moves = told or not step.is_idle
        # Waiting for a load is no lack of progress; a short block here keeps the loop from spinning meanwhile.
        if not moves and self._scheduler.waits_for_kv:
            self._scheduler.kv.loads.wait(KV_WAIT_S)
        else:
            self._faults.moved(moves)

    def _probe_if_wanted(self) -> None:
        if self._faults.wants_probe:
            self._scheduler.compute_next(self._faults.probe)
