"""How many draft tokens a sequence may have, and what became of them.

Owns: the draft budget under `num_speculative_tokens` and the sequence's length limit, and the counters of speculation.
Never does: propose or verify drafts. Called by: the scheduler.

A step that verifies d drafts adds between 1 and d + 1 tokens.
"""

from __future__ import annotations

from core.api.messages import SchedulerStats
from core.api.step_plan import StepPlan
from core.scheduler.sequence import SequenceState


class DraftRules:
    """Rules for drafts of at most `num_speculative_tokens` (at least 1) a step. They are counted in `stats`."""

    def __init__(self, num_speculative_tokens: int, stats: SchedulerStats) -> None:
        self._most = num_speculative_tokens
        self._stats = stats

    def plan(self, sequence: SequenceState, plan: StepPlan, num_tokens: int) -> int:
        """Enter the drafts that a step of `num_tokens` verifies, and how many may be proposed for the next step.

        Drafts that do not fit are dropped. Returns the positions to reserve behind the step's own, which a proposer
        with a KV cache may write before the next step.
        """
        length = len(sequence.token_ids)
        num_drafts = num_tokens - sequence.num_pending
        if num_drafts < 0:
            return 0
        sequence.drafts = sequence.drafts[:num_drafts]
        if num_drafts:
            plan.drafts[sequence.slot] = sequence.drafts
        budget = self._room(sequence, length + 1)
        if budget == 0:
            return 0
        plan.draft_budget[sequence.slot] = budget
        return self._room(sequence, length + 1 + num_drafts)

    def withdraw(self, sequence: SequenceState, plan: StepPlan) -> None:
        """Allow no proposals for the next step: there is no room for them."""
        plan.draft_budget.pop(sequence.slot, None)

    def accept(self, sequence: SequenceState, plan: StepPlan, num_tokens: int) -> bool:
        """Count the drafts of a step that gave `num_tokens`; False when these are more than the drafts allow."""
        num_drafts = len(plan.drafts.get(sequence.slot, ()))
        if num_drafts:
            self._stats.spec_num_drafts += 1
            self._stats.spec_num_draft_tokens += num_drafts
            self._stats.spec_num_accepted_tokens += min(num_tokens - 1, num_drafts)
        return num_tokens <= num_drafts + 1

    def keep(self, sequence: SequenceState, plan: StepPlan, proposed: list[int] | None) -> None:
        """Keep proposals for the next step, as many as were allowed and still fit behind the new tokens."""
        allowed = plan.draft_budget.get(sequence.slot, 0)
        room = self._room(sequence, len(sequence.token_ids))
        num_kept = min(allowed, room)
        sequence.drafts = proposed[:num_kept] if proposed else []

    def _room(self, sequence: SequenceState, length: int) -> int:
        """Drafts that fit behind `length` known tokens; the token that a step samples needs a place of its own."""
        num_left = sequence.max_length - length - 1
        return max(min(self._most, num_left), 0)
