"""The loop around one executor: plan a step, have it computed, finish it.

Owns: `EngineCore`, one turn of the loop at a time, and what happens when a step or the scheduler fails. Never does:
sockets, text, or sampling. Called by: `InprocClient` and the engine process, which decide when to step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from core.api.config import EngineConfig
from core.api.errors import CoreError, PluginError
from core.api.messages import Begun, EngineOutput, EngineOutputs, EngineRequest, SchedulerStats
from core.api.step_plan import SequenceKey, StepResult
from core.engine.canary import Canary
from core.engine.engine_state import EngineState
from core.engine.executor import Executor
from core.engine.executor_calls import ExecutorCalls
from core.engine.faults import Faults
from core.engine.held_requests import HeldRequests
from core.engine.lifecycle import Lifecycle
from core.engine.lifecycle_calls import OWNER
from core.engine.scheduling import build_scheduler
from core.engine.state_keeper import StateStorage
from core.engine.state_text import told_holders
from core.engine.step_counts import StepCounts
from core.engine.step_log import StepLog
from core.engine.step_queue import step_queue
from core.engine.step_trace import StepTrace
from core.engine.utilities import call_utility
from core.kv.connectors import KVConnectors
from core.plugin.table import PluginTable
from core.scheduler.results import StepOutputs
from core.scheduler.step import Step

logger = logging.getLogger(__name__)

SAVE_S = 3.0
"""Seconds that saving cached KV blocks may take at the end; a client waits a little longer before it kills."""

KV_WAIT_S = 0.005
"""How long a step that has nothing to compute waits for keys and values that are being loaded. A request that comes just
then waits as long."""

HELD_WAIT_S = 0.005
"""How long a step that has nothing to compute waits for a grammar that is being prepared; messages wait as long."""

T = TypeVar("T")


class EngineCore:
    """Scheduler and executor under one epoch.

    A request can never stop the loop: one that cannot be added, whose step fails, or that breaks an invariant ends with
    finish reason `error`, and no number of such requests ends the engine (see `Faults`).

    lifecycle: pauses, sleeps, takes new weights.

    trace: is told of each step; None: nobody is.
    before: the state of the engine before this one when it died; None: there was none.
    storage, wall_clock: see `Lifecycle`.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        epoch: int = 0,
        trace: StepTrace | None = None,
        before: EngineState | None = None,
        *,
        storage: StateStorage | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.executor = executor
        self.epoch = epoch
        self.kv_services = KVConnectors.open(config, executor.numerics, executor.page_bytes)
        self._plugins = PluginTable(config.plugins.table)
        self._queue = step_queue(executor, ahead=config.scheduler.async_scheduling, trace=trace)
        self._executor_calls = ExecutorCalls(executor, self._queue)
        self.scheduler = build_scheduler(config, self._queue, self.kv_services, self._plugins)
        pools = config.model.pooling
        self._faults = Faults(None if pools is None else pools.usual)
        self._held = HeldRequests(executor)
        self._refused: list[EngineOutput] = []
        self._begun: list[Begun] = []
        self._step_counts = StepCounts()
        self._step_log = StepLog() if config.log_steps else None
        self.lifecycle = Lifecycle(self, config, executor, storage=storage, clock=wall_clock)
        self._canary = Canary.open(config, executor)
        if self._canary is not None:
            try:
                self._canary.check(self._compute, config)
            except CoreError:
                self.close()
                raise
        self._tell_lifecycle()
        if before is not None:
            self.lifecycle.go_on_as(before)

    def _compute(self, request: EngineRequest) -> list[EngineOutput]:
        """All outputs of a request of the engine's own, while there are no others."""
        self.add([request])
        outputs: list[EngineOutput] = []
        while self.has_work():
            outputs += self.step().outputs
        return outputs

    def add(self, requests: Iterable[EngineRequest]) -> None:
        """Queue sequences. One that the scheduler refuses comes back from the next step as an error output."""
        for request in requests:
            if self.lifecycle.halt.holds:
                self.lifecycle.halt.hold(request)
            elif request.grammar is None or not self._held.hold(request):
                self._schedule(request)

    def _schedule(self, request: EngineRequest) -> None:
        try:
            self.scheduler.add(request)
        except Exception as error:
            logger.error("Request %r was refused.", request.request_id, exc_info=not isinstance(error, CoreError))
            reason = str(self._plugins.blamed(error))
            self.refuse(request.request_id, request.choice, request.handle, reason)

    def refuse(self, request_id: str, choice: int, handle: int, reason: str) -> None:
        """End a sequence that never started: the next step reports `reason` as its error."""
        output = EngineOutput(request_id, choice, 0, [], finish_reason="error", stop_reason=reason, handle=handle)
        self._refused.append(output)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget all choices of these requests; unknown ids are ignored; nothing is reported."""
        request_ids = list(request_ids)
        self._held.abort(request_ids)
        self.lifecycle.halt.forget(request_ids)
        self._guard(lambda: self.scheduler.abort(request_ids))

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Forget single choices; unknown ones are ignored; nothing is reported."""
        keys = list(keys)
        self._held.abort_choices(keys)
        self.lifecycle.halt.forget_choices(keys)
        self._guard(lambda: self.scheduler.abort_choices(keys))

    def has_work(self) -> bool:
        """Whether another step would do something."""
        lifecycle = self.lifecycle
        if self._refused or lifecycle.has_news:
            return True
        return not lifecycle.halt.is_halted and self.has_requests()

    def has_requests(self) -> bool:
        """Whether any request has not ended, besides those that came while the engine was halted."""
        return self.scheduler.has_unfinished() or len(self._held) > 0

    def has_live_requests(self) -> bool:
        """Whether any of them may still get a token; the others only wait for a step to report or to forget them."""
        return self.scheduler.num_live > 0 or len(self._held) > 0

    def end_all(self) -> None:
        """End these requests with finish reason `abort`, which the next step tells."""
        held = self._held.take_all()
        for request in held:
            output = EngineOutput(*request.key, 0, [], finish_reason="abort", handle=request.handle)
            self._refused.append(output)
        outputs = self._guard(self.scheduler.end_all)
        if outputs is not None:
            self._refused += outputs

    def start_over(self) -> None:
        """Have these requests wait again, with their tokens; what was cached for them is gone."""
        self._queue.give_up()
        self._refused += self.scheduler.start_over().records
        for observer in self.kv_services.observers:
            observer.cleared()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes, in tiers too; False, and no change, while requests run.

        reset_running_requests: whether those that run start over first, with the tokens that they have; then it is True.
        """
        if reset_running_requests:
            self.start_over()
        return self.scheduler.reset_prefix_cache()

    def drop_host_pages(self) -> None:
        """Forget what host memory has of the cache."""
        self.kv_services.drop_host_pages()

    def use_weights(self, config: EngineConfig) -> None:
        """From now on cached keys and values are those of the weights of `config`. A tier that fails is dropped."""
        self.config = config
        self.kv_services.use_weights(config, self.executor.numerics, self.executor.page_bytes)

    def beside(self, call: Callable[[], T]) -> T:
        """Call something between two steps, in the thread that computes them."""
        return self._queue.beside(call)

    @property
    def waits_for_kv(self) -> bool:
        """Whether sequences wait for keys and values that are being loaded; a step with nothing to compute waits as well."""
        return self.scheduler.waits_for_kv

    @property
    def waits(self) -> bool:
        """Whether sequences wait for something that is done beside the steps: keys and values, or their grammar."""
        return len(self._held) > 0 or self.waits_for_kv

    def step(self) -> EngineOutputs:
        """Plan one step and return the outputs of the oldest one in flight, which is the same one unless steps are
        planned ahead.

        Raises EngineDeadError when the executor is broken or the scheduler makes no progress.
        """
        if self.lifecycle.has_news:
            self._tell_lifecycle()
        if self._held:
            self._release()
        outputs = StepOutputs() if self.lifecycle.halt.is_halted else self._advance()
        if self._refused:
            outputs.records[:0] = self._refused
            self._refused = []
        message = EngineOutputs(self.epoch, outputs.records, self.stats(), outputs.tokens)
        if self._begun:
            message.begun = self._begun
            self._begun = []
        return message

    def save_idle(self) -> int | None:
        """To be called while there is no work: save some of what is cached to disk, for a few milliseconds, once the state
        canary has seen everything.

        Returns the milliseconds after which to call again if there is still no work; None: nothing is left to do.
        Raises StateError when the canary finds damage.
        """
        if self._canary is not None and self._canary.is_pending:
            self._canary.go_on()
            return 0
        return self.kv_services.save_idle(self.scheduler.kv, self._queue.copy)

    def stats(self) -> SchedulerStats:
        """State of scheduler and KV cache now."""
        if self.lifecycle.has_news:
            self._describe()
        stats = self.scheduler.stats()
        self.kv_services.report(stats)
        num_held = len(self._held) + len(self.lifecycle.halt.arrivals)
        stats.num_waiting += num_held
        stats.num_deferred += num_held
        stats.step_sizes = list(self._step_counts.row)
        return stats

    def call(self, method: str, arguments: Mapping[str, Any] | None = None, client: int = OWNER) -> Any:
        """Call a utility by name: `reset_prefix_cache` (whether it was), `check_integrity` or `ping` (None), and those of
        `ExecutorCalls` and of the lifecycle.

        client: the one that calls, by the engine's number.
        Raises UtilityError for an unknown method or argument, EngineDeadError when nothing can be computed any more.
        """
        utilities: dict[str, Callable[..., Any]] = {
            "ping": lambda: None,
            "reset_prefix_cache": self.reset_prefix_cache,
            "check_integrity": self.scheduler.check_integrity,
            **self._executor_calls.utilities(),
            **self.lifecycle.utilities(client),
        }
        return call_utility(utilities, method, arguments or {})

    def _tell_lifecycle(self) -> None:
        """Have the next message say what the engine is now, as all later ones do."""
        lifecycle = self.lifecycle
        lifecycle.note_drained()
        lifecycle.has_news = False
        self._describe()

    def _describe(self) -> None:
        """Have every copy of the statistics say what the engine is now."""
        lifecycle = self.lifecycle
        stats = self.scheduler.lasting_stats
        stats.weight_version = lifecycle.weights.version
        stats.sleep_level = lifecycle.level
        stats.is_paused = lifecycle.is_paused
        stats.phase = lifecycle.record.phase
        stats.holders = told_holders(lifecycle.record)

    def close(self) -> None:
        """Save what is cached to disk if asked for, wait for a step under way, and close the executor."""
        self._queue.give_up()
        self._held.close()
        self.kv_services.close(self.scheduler.kv, self._queue.copy, SAVE_S)
        self._queue.close()
        self.executor.close()

    def _advance(self) -> StepOutputs:
        if self.scheduler.wants_step():
            outputs = self._plan_and_run()
        elif self.scheduler.in_flight:
            outputs = self._finish_oldest()
        else:
            if self._held and not self._refused:
                self._held.await_one(HELD_WAIT_S)
            return StepOutputs()
        self.kv_services.after_step(self.scheduler.kv)
        return outputs

    def _release(self) -> None:
        """Schedule the sequences whose grammar is ready, and end those whose grammar will never be."""
        for request, error in self._held.release():
            if error is None:
                self._schedule(request)
                continue
            assert request.grammar is not None
            name = request.grammar.backend
            logger.error("The grammar backend '%s' failed.", name, exc_info=error)
            reason = f"The grammar backend '{name}' failed ({type(error).__name__}: {error})."
            self.refuse(request.request_id, request.choice, request.handle, reason)

    def _plan_and_run(self) -> StepOutputs:
        """Have a new step computed, and finish the oldest one when no further one may be planned."""
        step = self._guard(self.scheduler.schedule)
        if step is None:
            return StepOutputs()
        idle = step.is_idle and not self.scheduler.lockstep
        if not idle:
            self._submit(step)
        outputs = StepOutputs()
        num_in_flight = len(self.scheduler.in_flight)
        if num_in_flight >= self.scheduler.max_in_flight or (idle and num_in_flight):
            outputs = self._finish_oldest()
        if idle:  # there is nothing to wait for, but outputs of sequences that ended outside of a step
            outputs.records += self._finish(step, StepResult()).records
        self._watch_progress(step, outputs)
        return outputs

    def _submit(self, step: Step) -> None:
        if step.plan.new:
            now = time.time()
            self._begun += [Begun(new.request.handle, now) for new in step.plan.new]
        if self._step_log is not None:
            self._step_log.begin(step)
        try:
            step.ticket = self._queue.submit(step.plan)
        except BaseException:
            self._give_up()
            raise

    def _finish_oldest(self) -> StepOutputs:
        """Wait for the oldest step and read its result."""
        step = self.scheduler.in_flight[0]
        try:
            result = self._queue.result(step.ticket)
        except Exception as error:
            return self._fail(step, error)
        except BaseException:
            self._give_up()
            raise
        return self._finish(step, result)

    def _finish(self, step: Step, result: StepResult) -> StepOutputs:
        outputs = self._guard(lambda: self.scheduler.finish(step, result))
        if outputs is None:
            return StepOutputs()
        if step.plan.total_num_tokens:
            self._faults.went_well()
            self._step_counts.add(step.plan.total_num_tokens)
            if self._step_log is not None:
                self._step_log.end(step)
        return outputs

    def _fail(self, step: Step, error: Exception) -> StepOutputs:
        """Nothing of the step counts; the scheduler finds out whose fault it was."""
        cause = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        self._queue.give_up()
        self._faults.step_failed(step.plan, cause, error)
        logger.error("A step of %d sequences failed.", len(step.plan.slots), exc_info=error)
        sentence = f"The engine failed while it computed this request ({cause}); see the log."
        outputs = self._guard(lambda: self.scheduler.fail(step, sentence))
        self._probe_if_wanted()
        return StepOutputs() if outputs is None else outputs

    def _give_up(self) -> None:
        """The user interrupts: steps in flight may be done or not, so they count as not done."""
        self._queue.give_up()
        self.scheduler.give_up()

    def _guard(self, operation: Callable[[], T]) -> T | None:
        """Do something with the scheduler. What it raises is a defect: it is logged and mended, and None is returned."""
        try:
            return operation()
        except Exception as raised:
            error = self._plugins.blamed(raised)
            self._faults.scheduler_broke(self.scheduler.at_work, error)
            logger.error("The scheduler met a defect; all requests but the one at work start over.", exc_info=error)
            self._queue.give_up()
            self._refused += self.scheduler.mend(error).records
            self._probe_if_wanted()
            return None

    def _watch_progress(self, step: Step, outputs: StepOutputs) -> None:
        told = bool(outputs.records) or len(outputs.tokens) > 0
        moves = told or not step.is_idle
        if not moves and self.waits_for_kv:
            self.scheduler.kv.wait_for_loads(KV_WAIT_S)
        else:
            self._faults.moved(moves)

    def _probe_if_wanted(self) -> None:
        if self._faults.wants_probe:
            self.scheduler.compute_next(self._faults.probe)
