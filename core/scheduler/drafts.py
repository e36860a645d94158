"""How many draft tokens a sequence may have, and what became of them.

Owns: the draft budget under `num_speculative_tokens` and the sequence's length limit, the drafts of forced text that come
without a budget, and the counters of speculation. Never does: propose or verify drafts. Called by: the scheduler.

A step that verifies d drafts adds between 1 and d + 1 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.messages import SchedulerStats
from core.api.step_plan import StepPlan
from core.scheduler.sequence import SequenceState


class DraftRules:
    """Rules for drafts of at most `num_speculative_tokens` a step. They are counted in `stats`.

    Of a sequence with a grammar, the worker may also send the tokens of forced text, `most_forced` a step, which nobody
    planned for: they take no blocks and no memory but those of the step that verifies them.
    """

    def __init__(self, num_speculative_tokens: int, most_forced: int, stats: SchedulerStats) -> None:
        self._most = num_speculative_tokens
        self._most_forced = most_forced
        self._stats = stats
        self._has_forced = False

    def any_forced(self, sequences: Sequence[SequenceState]) -> bool:
        """Whether any of these has forced tokens to verify; nothing is looked at where none were kept since the last call."""
        if self._has_forced:
            self._has_forced = any(sequence.drafts for sequence in sequences)
        return self._has_forced

    def plan(self, sequence: SequenceState, plan: StepPlan, num_tokens: int) -> int:
        """Enter the drafts that a step of `num_tokens` verifies, and how many may be proposed for the next step.

        Drafts that do not fit are dropped. Returns the positions to reserve behind the step's own, which a proposer
        with a KV cache may write before the next step.
        """
        length = len(sequence.token_ids)
        num_drafts = num_tokens - sequence.num_pending
        if num_drafts < 0:
            if self._most:
                plan.draft_budget[sequence.slot] = 0
            return 0
        drafts = sequence.drafts[:num_drafts]
        sequence.drafts = []
        if drafts:
            plan.drafts[sequence.slot] = drafts
        if not self._most:
            return 0
        budget = self._room(sequence, length + 1, self._most)
        if budget == 0:
            return 0
        plan.draft_budget[sequence.slot] = budget
        return self._room(sequence, length + 1 + num_drafts, self._most)

    def withdraw(self, sequence: SequenceState, plan: StepPlan) -> None:
        """Allow no proposals for the next step: there is no room for them."""
        if sequence.slot in plan.draft_budget:
            plan.draft_budget[sequence.slot] = 0

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
        if not proposed:
            sequence.drafts = []
            return
        allowed = plan.draft_budget.get(sequence.slot, 0)
        if not self._most and sequence.request.grammar is not None:
            allowed = self._most_forced
            self._has_forced = True
        num_kept = self._room(sequence, len(sequence.token_ids), allowed)
        sequence.drafts = proposed[:num_kept]

    def _room(self, sequence: SequenceState, length: int, most: int) -> int:
        """Drafts that fit behind `length` known tokens; the token that a step samples needs a place of its own."""
        num_left = sequence.max_length - length - 1
        return max(min(most, num_left), 0)
