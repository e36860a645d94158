"""Choice of the number of drafts for the sequences of a step, so that drafts never make a batch slower.

Owns: `DraftControl`: that choice, and when it is made. Never does: plan, propose, verify, or learn (`DraftEvidence` does).
Called by: the rules for drafts.

While drafts are on, each step chooses again, from the cost of steps, the cost of proposing and the chance that drafts are
right (`choose`). While they are off, nothing is examined for `REST` steps. Sequences without drafts are probed with one
each whenever the account of gains and losses can pay for it. The number of drafts never changes a token.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from core.api.config import SchedulerConfig
from core.api.step_plan import Int32Array, Slot
from core.scheduler.draft_choice import NEVER, Outlook, choose
from core.scheduler.draft_evidence import DraftEvidence
from core.scheduler.running import RunningSet
from core.scheduler.step_cost import FIRST_TERMS, StepCost

REST = 16
"""Steps without drafts between two choices; also the minimum of steps between two probes."""

PROBE_REST = 3
"""Steps without drafts after a probe, until its outcome is known."""

MEASURE_EVERY = 128
"""Number of steps with drafts after which some run without, so that the measured cost of those stays current."""

MEASURED = 2
"""Number of steps without drafts in such a measurement."""


class DraftControl:
    """The choice for one engine, owned by `DraftRules`. With `adaptive_drafts` off it is always the maximum.

    is_on:   whether sequences of the step that is planned may be given drafts.
    reason:  why drafts are not worth it at present, a name of `NO_DRAFTS_CAUSES`; empty when they are.
    num_off: steps without drafts, by cause.
    num_on:  steps with drafts, by the largest budget of a sequence.
    evidence: observations of drafts so far.
    """

    def __init__(self, config: SchedulerConfig, cost: StepCost) -> None:
        self.is_on = False
        self.reason = ""
        self.num_off: Counter[str] = Counter()
        self.num_on: Counter[int] = Counter()
        self.evidence = DraftEvidence(
            config.num_speculative_tokens, config.max_num_seqs, cost, learns=config.adaptive_drafts
        )
        self._config = config
        self._barred = np.zeros(config.max_num_seqs, bool)
        self._budgets: dict[Slot, int] = {}
        self._fresh_budget = 0
        self._num_fresh = 0
        self._num_resting = 0
        self._num_in_a_row = 0
        self._num_steps = 0
        self._next_probe = 0
        self._cause = ""
        self._is_stopped = False

    def start(self, slot: Slot) -> None:
        """Reset what is known of a slot: a new sequence has it."""
        self.evidence.start(slot)
        self._barred[slot] = False

    def bar(self, slot: Slot) -> None:
        """Give the sequence at `slot` no drafts from now on."""
        self._barred[slot] = True

    def stop(self) -> None:
        """End drafting for the rest of the run, because the proposer has failed."""
        self._is_stopped = True

    def begin(self, running: RunningSet) -> None:
        """Choose the budgets of the step that is about to be planned."""
        self._num_steps += 1
        if self._is_stopped:
            self._rest("failed", REST)
            return
        # Nothing is examined in steps without drafts, so that speculation which does not pay costs nothing.
        if self._num_resting:
            self._num_resting -= 1
            self.num_off[self._cause] += 1
            self.is_on = False
            return
        slots = running.view.slots
        most = self._limit(len(slots))
        if not most:
            self.reason = "batch_size"
            self._rest("batch_size", REST)
        elif self._config.adaptive_drafts:
            self._decide(slots, int(running.length[slots].sum()), most)
        else:
            self.reason = ""
            self._fresh_budget = most
            self._turn_on({}, self._config.max_num_seqs)

    def budget(self, slot: Slot) -> int:
        """Limit of drafts for a sequence in this step. Called once a step for each sequence: it counts new ones."""
        if not self.is_on:
            return 0
        budget = self._budgets.get(slot)
        if budget is not None:
            return budget
        # A sequence that starts in this very step has no budget of its own yet.
        if not self._num_fresh or self._barred[slot]:
            return 0
        self._num_fresh -= 1
        return self._fresh_budget

    def _limit(self, num_seqs: int) -> int:
        """Limit of drafts of a sequence in a batch of this size."""
        most = self._config.num_speculative_tokens
        for first, last, limit in self._config.drafts_by_batch_size:
            if first <= num_seqs <= last:
                return min(limit, most)
        return most

    def _decide(self, slots: Int32Array, context_tokens: int, most: int) -> None:
        """Choose the budgets of a step."""
        # The gain is judged against steps without drafts; with drafts always on, their cost would be a guess from long ago.
        if self._num_in_a_row == MEASURE_EVERY:
            self._rest("measure", MEASURED)
            return
        outlook = self._outlook(slots, context_tokens, most)
        # Estimates may be wrong, measured losses are not: an empty account overrules the choice.
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
        """Expected cost and gain of the next step; for an empty batch, those of one sequence."""
        cost = self.evidence.cost
        acceptance = self.evidence.acceptance
        num_seqs = max(len(slots), 1)
        step = cost.predict(0, num_seqs, context_tokens)
        row = cost.predict(0, num_seqs + 1, context_tokens) - step
        if not cost.num_observed:
            # Before the first step is observed `predict` returns 0.0; of these terms only the ratios count.
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
        """Give one draft to each sequence that has none, if a probe is due and paid for; returns whether it did."""
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
        """Plan no drafts in this step and the next ones, `num_steps` in total."""
        self.is_on = False
        self.num_off[cause] += 1
        self._cause = cause
        self._num_resting = num_steps - 1
        self._num_in_a_row = 0

    def _turn_on(self, budgets: dict[Slot, int], num_fresh: int) -> None:
        self.is_on = True
        self._budgets = budgets
        self._num_fresh = num_fresh
        most = max(budgets.values(), default=self._fresh_budget)
        self.num_on[most] += 1
