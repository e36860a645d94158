"""Evidence about drafts from the steps of an engine.

Owns: `DraftEvidence`: which drafts were right, the time of proposing, and the gain of drafts so far. Never does: decide.
Called by: the control of drafts.
"""

from __future__ import annotations

from core.api.step_plan import Slot, StepResult
from core.scheduler.acceptance import Acceptance
from core.scheduler.draft_account import DraftAccount
from core.scheduler.proposal_cost import ProposalCost
from core.scheduler.step import Step
from core.scheduler.step_cost import StepCost, work_of

MOST_SURPRISE = 1.5
"""Limit of the ratio of a step to its prediction; larger ratios are clipped to it, since drafts are hardly their cause."""

NO_DRAFTS = (0, 0)


class DraftEvidence:
    """Learns from steps with drafts; a step without any costs one check. Owned by `DraftControl`.

    acceptance: estimates of how likely drafts are right.
    proposal:   seconds of proposing.
    account:    gains and losses of drafts.
    cost:       cost model of steps.
    seconds:    total time of proposing since the start.

    learns: whether the choice of drafts uses it; otherwise drafts are only counted.
    """

    def __init__(self, most: int, num_slots: int, cost: StepCost, *, learns: bool) -> None:
        self.acceptance = Acceptance(most, num_slots)
        self.proposal = ProposalCost(most)
        self.account = DraftAccount()
        self.cost = cost
        self.seconds = 0.0
        self._learns = learns
        self._wanted: dict[Slot, int] = {}
        self._verified: dict[Slot, tuple[int, int]] = {}

    def start(self, slot: Slot) -> None:
        """Reset what is known of a slot: a new sequence has it."""
        self.acceptance.start(slot)
        self._wanted.pop(slot, None)

    def verified(self, slot: Slot, num_drafts: int, num_accepted: int) -> None:
        """Note that the step that is being read verified `num_drafts` of a sequence and accepted `num_accepted`."""
        self._verified[slot] = num_drafts, num_accepted

    def finish(self, step: Step, result: StepResult, seconds: float) -> None:
        """Learn from a step whose results have been read. seconds: its duration."""
        plan = step.plan
        if not (plan.draft_budget or self._verified or self._wanted):
            if step.num_decodes:
                self.account.pay()
            return
        if self._verified:
            num_accepted = [accepted for _, accepted in self._verified.values()]
            self.acceptance.count(num_accepted)
        self.seconds += result.draft_seconds
        if self._learns:
            self._learn()
            # The time of a step with prompts is mostly theirs, so it would say little about drafts.
            if step.num_decodes and not step.chunks:
                self._settle(step, result, seconds)
        self._wanted = {slot: budget for slot, budget in plan.draft_budget.items() if budget}
        self._verified = {}

    def _learn(self) -> None:
        """Learn from the drafts that the previous step ordered and this one verified."""
        wanted = self._wanted
        verified = self._verified
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
