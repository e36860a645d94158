"""Numbers of drafts chosen so that drafts never make a batch slower.

Owns: `AdaptiveAdvice`: that choice, and when it is made. Never does: plan, propose, verify, or learn (`DraftEvidence` does).
Called by: the scheduler's rules for drafts, which find it as an entry point.

With drafts, each step chooses anew from what steps cost, what proposing costs and how likely drafts are right
(`choose`). Without, nothing is looked at for `REST` steps. Sequences without drafts are probed with one each whenever the
account of gains and losses has enough for it. How many drafts there are never changes a token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.api.config import SchedulerConfig
from core.api.step_plan import Int32Array, Slot, StepResult
from core.scheduler.running import RunningSet
from core.scheduler.step import Step
from core.scheduler.step_advice import REST, FixedAdvice
from core.scheduler.step_cost import FIRST_TERMS, StepCost
from core_speculative.adaptive.choice import NEVER, Outlook, choose
from core_speculative.adaptive.evidence import DraftEvidence

PROBE_REST = 3
"""Steps without drafts after a probe, until its outcome is known."""

MEASURE_EVERY = 128
"""Steps with drafts after which some have none: the time of steps without drafts must stay known."""

MEASURED = 2
"""Steps without drafts at such a time."""


class AdaptiveAdvice(FixedAdvice):
    """The choice for one engine.

    evidence: what is known of drafts.
    """

    def __init__(self, config: SchedulerConfig, cost: StepCost) -> None:
        super().__init__(config)
        self.evidence = DraftEvidence(config.num_speculative_tokens, config.max_num_seqs, cost)
        self._num_in_a_row = 0
        self._num_steps = 0
        self._next_probe = 0

    def start(self, slot: Slot) -> None:
        """Expect another sequence in a slot."""
        super().start(slot)
        self.evidence.start(slot)

    def begin(self, running: RunningSet) -> None:
        """Choose for the step that is about to be planned, unless the last choice still rests."""
        self._num_steps += 1
        super().begin(running)

    def finish(self, step: Step, result: StepResult, seconds: float) -> None:
        """Learn from a step whose results have been read."""
        self.evidence.finish(step, result, seconds, self._verified)
        super().finish(step, result, seconds)

    def _choose(self, running: RunningSet, most: int) -> None:
        """Choose the budgets of a step by what its drafts should bring."""
        if self._num_in_a_row == MEASURE_EVERY:
            self._rest("measure", MEASURED)
            return
        slots = running.view.slots
        outlook = self._outlook(slots, int(running.length[slots].sum()), most)
        least_chance = NEVER if self.evidence.account.credit < 0.0 else choose(outlook)
        budgets = (outlook.chances >= least_chance).sum(axis=1)
        is_worth_it = bool(budgets.any())
        is_probe = self._probe(budgets, outlook, slots)
        if not is_worth_it and not is_probe:
            self.reason = "cost"
            self._rest("cost", REST)
            return
        self._num_in_a_row += 1
        self.reason = ""
        if not is_worth_it:
            self.reason = self._cause = "cost"
            self._num_resting = PROBE_REST
        fresh = self.evidence.acceptance.fresh_chances()[:most]
        self._fresh_budget = int((fresh >= least_chance).sum())
        by_slot = zip(slots.tolist(), budgets.tolist(), strict=False)
        self._turn_on(dict(by_slot), max(len(slots), 1))

    def _outlook(self, slots: Int32Array, context_tokens: int, most: int) -> Outlook:
        """What the next step may cost and bring; of a batch that is about to begin: for one sequence."""
        cost = self.evidence.cost
        acceptance = self.evidence.acceptance
        num_seqs = max(len(slots), 1)
        step = cost.predict(0, num_seqs, context_tokens)
        row = cost.predict(0, num_seqs + 1, context_tokens) - step
        if not cost.num_observed:
            row = FIRST_TERMS["decode"]
            step = FIRST_TERMS["step"] + row * num_seqs
        if len(slots):
            chances = acceptance.chances(slots)[:, :most]
            chances[self._barred[slots]] = 0.0
            shares = acceptance.shares(slots)
        else:
            chances = acceptance.fresh_chances()[None, :most]
            shares = np.ones(1)
        return Outlook(chances, shares, step, row, self.evidence.proposal.seconds)

    def _probe(self, budgets: NDArray[np.int64], outlook: Outlook, slots: Int32Array) -> bool:
        """Give a draft to each sequence that has none, if its time has come; returns whether that was done."""
        if self._num_steps < self._next_probe or not len(slots):
            return False
        has_none = (budgets == 0) & ~self._barred[slots]
        if not has_none.any():
            return False
        seconds = outlook.row * float(outlook.shares[has_none].sum())
        if has_none.all():
            seconds += float(outlook.proposal[1])
        if seconds > self.evidence.account.credit * outlook.step:
            return False
        budgets[has_none] = 1
        self._next_probe = self._num_steps + REST
        return True

    def _rest(self, cause: str, num_steps: int) -> None:
        """Allow no drafts in this step and the next ones, `num_steps` in all."""
        super()._rest(cause, num_steps)
        self._num_in_a_row = 0
