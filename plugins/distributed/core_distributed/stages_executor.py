"""The executor `mp` with several stages: steps of different sequences are on their way at the same time.

Owns: the steps that were sent to the ranks and not yet computed on rank 0, which is in the last stage.
Never does: compute (workers do), or choose sequences (the scheduler does). Called by: the engine core.

A plan is sent to all ranks when it is submitted, and rank 0 computes its part when the result is requested. What it has drawn
is sent with the next plan: until then the other ranks need none of it, because the steps in flight share no sequence whose
next token is unknown.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from core.api.config import EngineConfig
from core.api.errors import EngineDeadError
from core.api.step_plan import StepPlan, StepResult
from core_distributed import executor
from core_distributed.arguments import RanksArguments
from core_distributed.calls import Call, Outcome
from core_distributed.commands import Kind
from core_distributed.executor import RanksExecutor
from core_distributed.hosts.started import StartedHosts
from core_distributed.step_wire import encode_step
from core_runtime.executor.stage import Outcome as StepOutcome
from core_runtime.executor.stage import Stage

logger = logging.getLogger(__name__)

ROOM: Final = 1 << 19
"""Bytes that the other ranks need not have read. They may be waiting for rank 0 to take in what they have computed, so a plan
that is larger than its share of this is sent only while no step is in flight."""


class StagesExecutor(RanksExecutor):
    """Runs steps on ranks in stages. The engine core owns it.

    max_in_flight: steps that may be submitted before the result of the first is requested.
    apart: least sequences of a step that shares none with the others in flight; see `Executor`.
    """

    def __init__(self, config: EngineConfig, arguments: RanksArguments, started: StartedHosts | None = None) -> None:
        self.max_in_flight = arguments.stages
        self._submitted: deque[tuple[int, StepPlan]] = deque()
        self._results: dict[int, StepResult | Exception] = {}
        self._outcomes: list[StepOutcome] = []
        super().__init__(config, arguments, started)
        self.apart = self._ranks.fewest_together(self.worker.whole)

    def submit(self, plan: StepPlan) -> int:
        """Send a plan to all ranks; returns the number of the step. Raises EngineDeadError when a rank has ended."""
        self.check()
        self.tell_adapters()
        plan = self._placed(plan)
        message = self._plans.encode(executor._for_others(plan))
        if len(message) > ROOM // (self.max_in_flight + 1):
            self._compute_until(self._number)
        self._send(Kind.STEP, encode_step(self._number + 1, self._outcomes, message))
        self._outcomes = []
        self._submitted.append((self._number, plan))
        return self._number

    def result(self, ticket: object) -> StepResult:
        """Compute rank 0's part of a step, and of all earlier ones, and return the result.

        Raises what the step raised; EngineDeadError when a rank has ended or is silent.
        """
        assert isinstance(ticket, int)
        self._compute_until(ticket)
        found = self._results[ticket]
        # The results of abandoned steps are never requested.
        self._results = {number: other for number, other in self._results.items() if number > ticket}
        if isinstance(found, Exception):
            raise found
        return found

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step on all ranks and return the result of rank 0."""
        return self.result(self.submit(plan))

    def _ask(self, call: Call) -> list[Outcome]:
        """Carry out a call on all ranks, after all steps that were submitted."""
        self._compute_until(self._number)
        return super()._ask(call)

    @property
    def _stage(self) -> Stage:
        stage = self._ranks.stage
        assert stage is not None, "there are several stages"
        return stage

    def _compute_until(self, number: int) -> None:
        """Compute all steps up to this number and keep their results, or errors. Raises EngineDeadError."""
        while self._submitted and self._submitted[0][0] <= number:
            oldest, plan = self._submitted.popleft()
            try:
                self._results[oldest] = self._compute(oldest, plan)
            except EngineDeadError:
                raise
            except Exception as error:
                self._results[oldest] = error

    def _compute(self, number: int, plan: StepPlan) -> StepResult:
        """Compute rank 0's part of a step."""
        stage = self._stage
        self.check()
        stage.number = number
        try:
            result = self.worker.execute(self._part(plan))
            if self._pages is not None and plan.transfers is not None:
                self._pages.wait(number, self.check, self._arguments.timeout_seconds)
                self._pages.complete(plan, result)
        except BaseException as error:
            self._explain(error, stage.give_up)
            raise
        if plan.total_num_tokens:
            self._outcomes.append(stage.outcome(result))
        return result
