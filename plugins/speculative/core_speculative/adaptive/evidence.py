"""Evidence about drafts from the steps of an engine.

Owns: `DraftEvidence`: how many drafts were right, the time of proposing, and what drafts have brought so far. Never does:
decide. Called by: the adaptive advice.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.api.step_plan import Slot, StepResult
from core.scheduler.step import Step
from core.scheduler.step_cost import StepCost, work_of
from core_speculative.adaptive.acceptance import Acceptance
from core_speculative.adaptive.account import DraftAccount
from core_speculative.adaptive.proposal_cost import ProposalCost

MOST_SURPRISE = 1.5
"""Limit of the ratio of a step to its prediction; larger ratios are clipped to it, since drafts are hardly their cause."""

NO_DRAFTS = (0, 0)


class DraftEvidence:
    """Learns from steps with drafts; a step without any costs one check. Owned by `DraftControl`.

    acceptance: how likely drafts are right.
    proposal:   what proposing takes.
    account:    what drafts have brought and cost.
    cost:       of steps.
    """

    def __init__(self, most: int, num_slots: int, cost: StepCost) -> None:
        self.acceptance = Acceptance(most, num_slots)
        self.proposal = ProposalCost(most)
        self.account = DraftAccount()
        self.cost = cost
        self._wanted: dict[Slot, int] = {}

    def start(self, slot: Slot) -> None:
        """Reset what is known of a slot: a new sequence has it."""
        self.acceptance.start(slot)
        self._wanted.pop(slot, None)

    def finish(self, step: Step, result: StepResult, seconds: float, verified: Mapping[Slot, tuple[int, int]]) -> None:
        """Learn from a step whose results have been read.

        seconds:  its duration.
        verified: by slot, how many drafts the step has verified, and how many of them were right.
        """
        plan = step.plan
        if not (plan.draft_budget or verified or self._wanted):
            if step.num_decodes:
                self.account.pay()
            return
        self._learn(verified)
        if step.num_decodes and not step.chunks:
            self._settle(step, result, seconds)
        self._wanted = {slot: budget for slot, budget in plan.draft_budget.items() if budget}

    def _learn(self, verified: Mapping[Slot, tuple[int, int]]) -> None:
        """Learn from the drafts that the previous step had wanted, and this one has verified."""
        wanted = self._wanted
        if not wanted:
            return
        # Text that a grammar forces may come without an order, and then says nothing about the proposer.
        slots = [slot for slot in wanted if slot in verified]
        if slots:
            num_drafts = [verified[slot][0] for slot in slots]
            num_accepted = [verified[slot][1] for slot in slots]
            self.acceptance.learn(slots, num_drafts, num_accepted)
        found = [verified.get(slot, NO_DRAFTS)[0] for slot in wanted]
        self.acceptance.learn_shares(list(wanted), list(wanted.values()), found)

    def _settle(self, step: Step, result: StepResult, seconds: float) -> None:
        """Charge the account for the time of a step of decodes, and credit its tokens."""
        work = work_of(step.plan, step.num_decodes, result)
        expected = self.cost.predict(*work)
        without = self.cost.predict(0, step.num_decodes, work.context_tokens)
        if not without:
            return
        computing = seconds - result.draft_seconds
        computing = min(max(computing, expected / MOST_SURPRISE), expected * MOST_SURPRISE)
        num_steps = (computing + result.draft_seconds) / without
        num_more = sum(len(token_ids) for token_ids in result.more_token_ids.values())
        num_tokens = len(result.slots) + num_more
        self.account.charge(num_steps, num_tokens / step.num_decodes)
        most = max(step.plan.draft_budget.values(), default=0)
        if most:
            self.proposal.observe(most, result.draft_seconds)
