"""A machine whose steps take a known time and whose drafts are right as often as is known, for the choice of drafts.

Owns: `Drafter`, an executor that proposes, and `DraftBench`, which runs requests on a clock of its own. Never does: read the
real clock. Called by: tests of the scheduler.
"""

import random
from collections.abc import Callable

from scheduler.fake_model import Client, FakeExecutor, make_request, make_scheduler
from scheduler.test_step_cost import Machine

from core.api.step_plan import StepPlan, StepResult
from core.scheduler.scheduler import Scheduler
from core.scheduler.step_cost import work_of
from core_speculative.adaptive.control import AdaptiveAdvice

Accuracy = Callable[[int, int], float]
"""How often a draft is right: by the first token of a sequence's prompt and the number of its tokens."""


def always(accuracy: float) -> Accuracy:
    return lambda first, length: accuracy


class Drafter(FakeExecutor):
    """share: how often a sequence has drafts at all."""

    def __init__(self, num_blocks: int, accuracy: Accuracy, share: float) -> None:
        super().__init__(num_blocks)
        self.accuracy_of = accuracy
        self.share = share
        self.times_asked = 0

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        self.times_asked += bool(plan.draft_budget)
        result.num_proposed = {}
        for slot, budget in plan.draft_budget.items():
            held = self.held[slot]
            held.drafts = []
            if slot in result.slots and self.random.random() < self.share:
                self.accuracy = self.accuracy_of(held.token_ids[0], len(held.token_ids))
                held.drafts = self.propose(held, budget)
                result.num_proposed[slot] = budget
        return result


class DraftBench:
    """Runs requests. propose, draft: seconds of proposing in a step, and of each further draft of a sequence.

    budgets: the largest of each step.
    """

    def __init__(
        self,
        machine: Machine,
        accuracy: Accuracy,
        *,
        share: float = 1.0,
        propose: float = 0.0,
        draft: float = 0.0,
        noise: float = 0.0,
        num_blocks: int = 4096,
        **limits: object,
    ) -> None:
        self.now = 100.0
        self.budgets: list[int] = []
        self.client = Client()
        self._machine = machine
        self._propose = propose
        self._draft = draft
        self._noise = noise
        self._random = random.Random(7)
        settings = {
            "advise": AdaptiveAdvice,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 2048,
            "max_model_len": 4000,
            "adaptive_drafts": True,
        }
        self.scheduler: Scheduler = make_scheduler(num_blocks, clock=lambda: self.now, **(settings | limits))
        self.executor = Drafter(num_blocks, accuracy, share)

    def add(self, number: int, max_tokens: int, *, first: int = 1) -> None:
        self.scheduler.add(make_request(f"r{number}", [first, number % 40, number // 40], max_tokens))

    def step(self) -> None:
        step = self.scheduler.schedule()
        result = self.executor.execute(step.plan)
        seconds = self._machine.seconds(work_of(step.plan, step.num_decodes, result))
        seconds *= max(0.5, self._random.gauss(1.0, self._noise))
        most = max(step.plan.draft_budget.values(), default=0)
        self.budgets.append(most)
        if most:
            result.draft_seconds = self._propose + self._draft * most
        self.now += seconds + result.draft_seconds
        self.client.receive(self.scheduler.finish(step, result))

    def run(self) -> float:
        """Everything that was added. Returns its seconds."""
        begin = self.now
        while self.scheduler.has_unfinished():
            self.step()
        return self.now - begin
