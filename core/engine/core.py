"""The loop around one executor: schedule, execute, update.

Owns: `EngineCore`, one step at a time, and what happens when a step or the scheduler fails. Never does: sockets, text, or
sampling. Called by: `InprocClient` and the engine process, which decide when to step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from core.api.config import EngineConfig
from core.api.errors import CoreError, EngineDeadError, PluginError
from core.api.kv_transfer import KVTransfers, Page
from core.api.messages import EngineOutput, EngineOutputs, EngineRequest, SchedulerStats
from core.api.policy import SchedulingPolicy
from core.api.sampling_params import SamplingParams
from core.api.step_plan import SequenceKey, Slot, StepPlan, StepResult
from core.engine.utilities import call_utility
from core.kv.manager import KVManager
from core.kv.services import KVServices
from core.plugin.hookspecs import LoadContext
from core.plugin.table import PluginTable
from core.scheduler.results import StepOutputs
from core.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

MAX_IDLE_STEPS = 1000
"""Steps in a row that may plan nothing although requests wait; more is a fault of the scheduler, not a reason to hang."""

FAULTS_BEFORE_PROBE = 8
"""Faults in a row (steps that failed, broken invariants), without a step in between that went well, after which the engine
computes a request of its own. However many bad requests come, that one is not at fault."""

MAX_VIOLATIONS = 16
"""Broken invariants in a row that can be blamed on no request, so that none ends with them: the scheduler is broken."""

SAVE_S = 3.0
"""Seconds that saving cached KV blocks may take at the end; a client waits a little longer before it terminates."""

T = TypeVar("T")


class Executor(Protocol):
    """What the loop needs of an executor.

    num_blocks: blocks of the KV cache. page_bytes: of one block, in all layers of its group. numerics: what results
    depend on. phases: (name, seconds) of the start.
    """

    num_blocks: int
    page_bytes: int
    numerics: str
    phases: list[tuple[str, float]]

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute one step. An exception fails the sequences of the step; the executor must accept the next plan, whose
        `removed` names their slots, whether it knows them or not."""
        ...

    def close(self) -> None:
        """Give memory and threads back."""
        ...


class EngineCore:
    """Scheduler and executor under one epoch.

    A request can never stop the loop: one that cannot be added, whose step fails, or that breaks an invariant ends with
    finish reason `error`, and no number of such requests ends the engine. After `FAULTS_BEFORE_PROBE` faults in a row it
    computes one token of a request of its own, alone: when that fails too, executor or scheduler are broken, and `step`
    raises `EngineDeadError`; when it succeeds, the requests were at fault, and counting begins anew.
    """

    def __init__(self, config: EngineConfig, executor: Executor, epoch: int = 0) -> None:
        self.config = config
        self.executor = executor
        self.epoch = epoch
        self.kv_services = KVServices.open(config, executor.numerics, executor.page_bytes)
        self._plugins = PluginTable(config.plugins.table)
        try:
            self.scheduler = Scheduler(config.scheduler, self._make_kv, load_policy(config, self._plugins))
        except Exception as error:
            self._plugins.blame(error)
            raise
        self._thread: ThreadPoolExecutor | None = None
        if config.scheduler.async_scheduling and not config.scheduler.num_speculative_tokens:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="step")
        self._pending: tuple[StepPlan, Future[StepResult] | None] | None = None
        self._refused: list[EngineOutput] = []
        self._unheard_removals: list[Slot] = []
        self._probe = EngineRequest("core-engine-probe", 0, [0], SamplingParams(max_tokens=1, temperature=0.0), seed=0)
        self._faults = 0
        self._violations = 0
        self._idle_steps = 0

    def add(self, requests: Iterable[EngineRequest]) -> None:
        """Queue sequences. One that the scheduler refuses comes back from the next step as an error output."""
        for request in requests:
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
        self._guard(lambda: self.scheduler.abort(request_ids))

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Forget single choices; unknown ones are ignored; nothing is reported."""
        keys = list(keys)
        self._guard(lambda: self.scheduler.abort_choices(keys))

    def has_work(self) -> bool:
        """Whether another step would do something."""
        return bool(self._refused) or self._pending is not None or self.scheduler.has_unfinished()

    def step(self) -> EngineOutputs:
        """Run one step and return its outputs; with async scheduling, those of the step before.

        Raises EngineDeadError when the executor is broken or the scheduler makes no progress.
        """
        outputs = StepOutputs()
        if self._pending is not None or self.scheduler.has_unfinished():
            plan = self._guard(self.scheduler.schedule)
            if plan is not None:
                if plan.total_num_tokens:
                    plan.transfers = self.scheduler.kv.take_transfers()
                outputs = self._run(plan) if self._thread is None else self._run_ahead(plan, self._thread)
                self._watch_progress(plan, outputs)
            self.kv_services.after_step(self.scheduler.kv)
        if self._refused:
            outputs.records[:0], self._refused = self._refused, []
        return EngineOutputs(self.epoch, outputs.records, self.stats(), outputs.tokens)

    def save_idle(self) -> int | None:
        """To be called while there is no work: save some of what is cached to disk, for a few milliseconds.

        Returns the milliseconds after which to call again if there is still no work; None: nothing is left to do.
        """
        return self.kv_services.save_idle(self.scheduler.kv, self._copy)

    def stats(self) -> SchedulerStats:
        """State of scheduler and KV cache now."""
        stats = self.scheduler.stats()
        self.kv_services.report(stats)
        return stats

    def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a utility by name: `reset_prefix_cache` (whether it was), `check_integrity` or `ping` (None).

        Raises UtilityError for an unknown method or argument.
        """
        utilities: dict[str, Callable[..., Any]] = {
            "ping": lambda: None,
            "reset_prefix_cache": self.scheduler.reset_prefix_cache,
            "check_integrity": self.scheduler.check_integrity,
        }
        return call_utility(utilities, method, arguments or {})

    def close(self) -> None:
        """Wait for a step under way, save what is cached to disk if asked for, and close the executor."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self.kv_services.close(self.scheduler.kv, self._copy, SAVE_S)
        self.executor.close()

    def _copy(self, transfers: KVTransfers) -> list[Page] | None:
        """Make copies between steps, where steps are made; None when that failed."""
        plan = StepPlan(transfers=transfers)
        try:
            if self._thread is None:
                return self.executor.execute(plan).pages
            return self._thread.submit(self.executor.execute, plan).result().pages
        except Exception as error:
            logger.error("Cached KV blocks could not be copied.", exc_info=error)
            return None

    def _run(self, plan: StepPlan) -> StepOutputs:
        """Execute a plan and read its result."""
        try:
            result = self._execute(plan)
        except Exception as error:
            return self._fail_step(plan, error)
        except BaseException:
            self._give_up_copies(plan)
            self._unheard_removals = plan.removed
            self.scheduler.cancel_steps()
            raise
        return self._update(plan, result)

    def _run_ahead(self, plan: StepPlan, thread: ThreadPoolExecutor) -> StepOutputs:
        """Wait for the step before, start `plan`, and read the former's result while the latter runs."""
        before, self._pending = self._pending, None
        result = StepResult()
        if before is not None and before[1] is not None:
            try:
                result = before[1].result()
            except Exception as error:
                self._unheard_removals = plan.removed
                self._give_up_copies(plan)
                return self._fail_step(before[0], error)
            except BaseException:
                self._give_up_copies(before[0])
                self._give_up_copies(plan)
                self._unheard_removals = [*before[0].removed, *plan.removed]
                self.scheduler.cancel_steps()
                raise
        idle = not plan.total_num_tokens and not plan.removed and not self._unheard_removals
        self._pending = plan, None if idle else thread.submit(self._execute, plan)
        outputs = StepOutputs() if before is None else self._update(before[0], result)
        if self._pending is not None and self._pending[1] is None:
            self._pending = None
            outputs.records += self._update(plan, StepResult()).records
        return outputs

    def _execute(self, plan: StepPlan) -> StepResult:
        if self._unheard_removals:
            plan.removed = list(dict.fromkeys([*self._unheard_removals, *plan.removed]))
            self._unheard_removals = []
        if not plan.total_num_tokens and not plan.removed:
            return StepResult()
        return self.executor.execute(plan)

    def _give_up_copies(self, plan: StepPlan) -> None:
        """The copies of a plan that was not, or may not have been, computed count as not made."""
        if plan.transfers is not None:
            self.scheduler.kv.settle_transfers(plan.transfers, None)

    def _update(self, plan: StepPlan, result: StepResult) -> StepOutputs:
        if plan.transfers is not None:
            self.scheduler.kv.settle_transfers(plan.transfers, result.pages)
        outputs = self._guard(lambda: self.scheduler.update(plan, result))
        if outputs is None:
            return StepOutputs()
        if plan.total_num_tokens:
            self._faults = self._violations = 0
        return outputs

    def _fail_step(self, plan: StepPlan, error: Exception) -> StepOutputs:
        """Nothing of the step counts; the scheduler finds out whose fault it was."""
        cause = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        self._give_up_copies(plan)
        self._unheard_removals = [*plan.removed, *self._unheard_removals]
        if any(new.request.key == self._probe.key for new in plan.new):
            raise EngineDeadError(
                f"The executor failed in {self._faults + 1} steps in a row, the last of which computed one token of the "
                f"engine's own; the last failure was {cause}."
            ) from error
        logger.error("A step of %d sequences failed.", len(plan.slots), exc_info=error)
        sentence = f"The engine failed while it computed this request ({cause}); see the log."
        outputs = self._guard(lambda: self.scheduler.fail_step(sentence))
        self._count_fault()
        return StepOutputs() if outputs is None else outputs

    def _count_fault(self) -> None:
        self._faults += 1
        if self._faults >= FAULTS_BEFORE_PROBE:
            self.scheduler.compute_next(self._probe)

    def _guard(self, operation: Callable[[], T]) -> T | None:
        """Do something with the scheduler. What it raises is a defect: it is logged and mended, and None is returned."""
        try:
            return operation()
        except Exception as raised:
            error = self._plugins.blamed(raised)
            guilty = self.scheduler.at_work
            self._violations += guilty is None
            if (guilty is not None and guilty.key == self._probe.key) or self._violations >= MAX_VIOLATIONS:
                raise EngineDeadError(
                    f"The scheduler broke {self._faults + 1} times in a row; the last time it said: {error}"
                ) from error
            logger.error("The scheduler met a defect; all requests but the one at work start over.", exc_info=error)
            if self._pending is not None and self._pending[1] is not None:
                self._pending[1].exception()
            self._pending = None
            self._refused += self.scheduler.mend(error).records
            self._count_fault()
            return None

    def _make_kv(self) -> KVManager:
        cache, scheduler = self.config.cache, self.config.scheduler
        return KVManager(
            self.executor.num_blocks,
            cache.block_size,
            cache.enable_prefix_caching,
            cache.hash_algorithm,
            groups=cache.groups,
            max_step_tokens=scheduler.max_step_tokens,
            tiers=self.kv_services.tiers,
            observers=self.kv_services.observers,
        )

    def _watch_progress(self, plan: StepPlan, outputs: StepOutputs) -> None:
        moves = plan.total_num_tokens or plan.removed or outputs.records or len(outputs.tokens)
        self._idle_steps = 0 if moves else self._idle_steps + 1
        if self._idle_steps > MAX_IDLE_STEPS:
            raise EngineDeadError(f"The scheduler planned nothing in {self._idle_steps} steps although requests wait.")


def load_policy(config: EngineConfig, plugins: PluginTable) -> SchedulingPolicy:
    """The policy plugin that was chosen. Raises PluginError."""
    name = config.scheduler.policy
    context = LoadContext(arguments=config.plugins.arguments.get(f"policy.{name}"), config=config)
    policy: SchedulingPolicy = plugins.load("policy", name, context)
    return policy
