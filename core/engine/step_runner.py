"""Steps from the plan to the results, and what follows when one fails.

Owns: `StepRunner`: when a step is planned, submitted and finished, the count of faults, and the outputs of sequences that ended
outside of a step. Never does: schedule, compute, or know who calls. Called by: the engine core, once a turn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from core.api.errors import PluginError
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
"""How long a step that has nothing to compute waits for keys and values that are being loaded. A request that comes just
then waits as long."""

StepHook = Callable[[Step], object]

T = TypeVar("T")


class StepRunner:
    """The steps of one scheduler and one queue.

    ended: outputs of sequences that ended outside of a step. begun: sequences whose prompt has begun to be computed. The
    engine core takes both for its next message.

    submitted: called before a step is handed to the executor. finished: called after the results of a step were read that
    computed something.
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
        """Call an operation of the scheduler. An exception is a defect: it is logged, all sequences but the one that was being
        handled start over, and None is returned.

        Raises EngineDeadError when such defects do not end.
        """
        try:
            return operation()
        except Exception as raised:
            error = self._plugins.blamed(raised)
            self._faults.scheduler_broke(self._scheduler.at_work, error)
            logger.error("The scheduler met a defect; all requests but the one at work start over.", exc_info=error)
            self._queue.give_up()
            self.ended += self._scheduler.mend(error).records
            self._probe_if_wanted()
            return None

    def start_over(self) -> None:
        """Have all sequences wait again, with their tokens and an empty cache; steps in flight count as never begun."""
        self._queue.give_up()
        self.ended += self._scheduler.start_over().records

    def plan_and_run(self) -> StepOutputs:
        """Have a new step computed, and finish the oldest one when no further one may be planned.

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
        if num_in_flight >= scheduler.max_in_flight or (idle and num_in_flight):
            outputs = self.finish_oldest()
        if idle:  # there is nothing to wait for, but outputs of sequences that ended outside of a step
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
            step.ticket = self._queue.submit(step.plan)
        except BaseException:
            self._give_up()
            raise

    def finish_oldest(self) -> StepOutputs:
        """Wait for the oldest step and read its result. Raises EngineDeadError when the executor is broken."""
        step = self._scheduler.in_flight[0]
        try:
            result = self._queue.result(step.ticket)
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
        if step.plan.total_num_tokens:
            self._faults.went_well()
            for finished in self._finished:
                finished(step)
        return outputs

    def _fail(self, step: Step, error: Exception) -> StepOutputs:
        """Nothing of the step counts; the scheduler finds out which sequence was at fault."""
        cause = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        self._queue.give_up()
        self._faults.step_failed(step.plan, cause, error)
        logger.error("A step of %d sequences failed.", len(step.plan.slots), exc_info=error)
        sentence = f"The engine failed while it computed this request ({cause}); see the log."
        outputs = self.guard(lambda: self._scheduler.fail(step, sentence))
        self._probe_if_wanted()
        return StepOutputs() if outputs is None else outputs

    def _give_up(self) -> None:
        """The user interrupts: steps in flight may be done or not, so they count as not done."""
        self._queue.give_up()
        self._scheduler.give_up()

    def _watch_progress(self, step: Step, outputs: StepOutputs) -> None:
        told = bool(outputs.records) or len(outputs.tokens) > 0
        moves = told or not step.is_idle
        if not moves and self._scheduler.waits_for_kv:
            self._scheduler.kv.wait_for_loads(KV_WAIT_S)
        else:
            self._faults.moved(moves)

    def _probe_if_wanted(self) -> None:
        if self._faults.wants_probe:
            self._scheduler.compute_next(self._faults.probe)
