"""The loop around one executor: schedule, execute, update.

Owns: `EngineCore`, one step at a time, and what happens when a step fails. Never does: sockets, text, or sampling.
Called by: `InprocClient` and the engine process, which decide when to step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from core.api.config import EngineConfig
from core.api.errors import CoreError, EngineDeadError
from core.api.messages import EngineOutput, EngineOutputs, EngineRequest
from core.api.step_plan import SequenceKey, StepPlan, StepResult
from core.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

MAX_IDLE_STEPS = 1000
"""Steps in a row that may plan nothing although requests wait; more is a fault of the scheduler, not a reason to hang."""

MAX_FAILED_STEPS = 5
"""Failing steps in a row that mean a broken executor. A client that repeats one bad request a few times stays below."""


class Executor(Protocol):
    """What the loop needs of an executor.

    num_blocks: blocks of the KV cache. numerics: what results depend on. phases: (name, seconds) of the start.
    """

    num_blocks: int
    numerics: str
    phases: list[tuple[str, float]]

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute one step. An exception fails the sequences of the step; the executor must accept the next plan, whose
        `removed` names them."""
        ...

    def close(self) -> None:
        """Give memory and threads back."""
        ...


class EngineCore:
    """Scheduler and executor under one epoch.

    A request can never stop the loop: one that cannot be added, or whose step fails, ends with finish reason `error`.
    `MAX_FAILED_STEPS` failing steps in a row mean that the executor is broken: `step` then raises `EngineDeadError`.
    """

    def __init__(self, config: EngineConfig, executor: Executor, epoch: int = 0) -> None:
        self.config = config
        self.executor = executor
        self.epoch = epoch
        self.scheduler = Scheduler(config.scheduler, config.cache, executor.num_blocks)
        self._refused: list[EngineOutput] = []
        self._unheard_removals: list[SequenceKey] = []
        self._failed_steps = 0
        self._idle_steps = 0

    def add(self, requests: Iterable[EngineRequest]) -> None:
        """Queue sequences. One that the scheduler refuses comes back from the next step as an error output."""
        for request in requests:
            try:
                self.scheduler.add(request)
            except Exception as error:
                logger.error("Request %r was refused.", request.request_id, exc_info=not isinstance(error, CoreError))
                self.refuse(request.request_id, request.choice, str(error))

    def refuse(self, request_id: str, choice: int, reason: str) -> None:
        """End a sequence that never started: the next step reports `reason` as its error."""
        self._refused.append(EngineOutput(request_id, choice, 0, [], finish_reason="error", stop_reason=reason))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget all choices of these requests; unknown ids are ignored; nothing is reported."""
        self.scheduler.abort(request_ids)

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Forget single choices; unknown ones are ignored; nothing is reported."""
        self.scheduler.abort_choices(keys)

    def has_work(self) -> bool:
        """Whether another step would do something."""
        return bool(self._refused) or self.scheduler.has_unfinished()

    def step(self) -> EngineOutputs:
        """Run one step and return its outputs.

        Raises EngineDeadError when the executor is broken or the scheduler makes no progress.
        """
        outputs, self._refused = self._refused, []
        if self.scheduler.has_unfinished():
            plan = self.scheduler.schedule()
            outputs += self.scheduler.update(plan, self._execute(plan))
            self._watch_progress(plan, outputs)
        return EngineOutputs(self.epoch, outputs, self.scheduler.stats())

    def call(self, method: str) -> str:
        """A utility by name: `reset_prefix_cache` (answers `true` or `false`) or `check_integrity` (answers `ok`)."""
        if method == "reset_prefix_cache":
            return "true" if self.scheduler.reset_prefix_cache() else "false"
        if method == "check_integrity":
            self.scheduler.check_integrity()
            return "ok"
        raise EngineDeadError(f"Utility {method!r} is unknown; expected reset_prefix_cache or check_integrity.")

    def close(self) -> None:
        """Close the executor."""
        self.executor.close()

    def _execute(self, plan: StepPlan) -> StepResult:
        plan.removed[:0] = self._unheard_removals
        self._unheard_removals = []
        if not plan.total_num_tokens and not plan.removed:
            return StepResult()
        try:
            result = self.executor.execute(plan)
        except BaseException as error:
            self._unheard_removals = plan.removed
            if not isinstance(error, Exception):
                raise
            return self._fail_step(plan, error)
        if plan.total_num_tokens:
            self._failed_steps = 0
        return result

    def _fail_step(self, plan: StepPlan, error: Exception) -> StepResult:
        cause = f"{type(error).__name__}: {error}"
        self._failed_steps += 1
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise EngineDeadError(
                f"The executor failed in {self._failed_steps} steps in a row; the last failure was {cause}."
            ) from error
        logger.error("A step of %d sequences failed; they end, others go on.", len(plan.num_scheduled), exc_info=error)
        sentence = f"The engine failed while it computed this request ({cause}); see the log."
        return StepResult(errors=dict.fromkeys(plan.num_scheduled, sentence))

    def _watch_progress(self, plan: StepPlan, outputs: list[EngineOutput]) -> None:
        self._idle_steps = 0 if plan.total_num_tokens or plan.removed or outputs else self._idle_steps + 1
        if self._idle_steps > MAX_IDLE_STEPS:
            raise EngineDeadError(f"The scheduler planned nothing in {self._idle_steps} steps although requests wait.")
