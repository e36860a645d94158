"""How many draft tokens a sequence may have, and what became of them.

Owns: the draft budget under `num_speculative_tokens` and the sequence's length limit, the drafts of forced text that come
without a budget, and the counters of speculation. Never does: propose, hold or verify drafts: the worker does.
Called by: the scheduler.

A step that verifies d drafts adds between 1 and d + 1 tokens. The worker says how many drafts it holds, so a plan knows what
it verifies, unless it is made ahead: then it allows for as many as were ordered, and its sequences may be longer than they
are sure to be (`num_unsettled`) until the results say how long they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.messages import SchedulerStats
from core.api.step_plan import Slot, StepPlan, StepResult
from core.scheduler.sequence import SequenceState


class DraftRules:
    """Rules for drafts of at most `num_speculative_tokens` a step. They are counted in `stats`.

    Of a sequence with a grammar, the worker may also hold the tokens of forced text, `most_forced` a step, which nobody
    ordered: they take no blocks and no memory but those of the step that verifies them.
    """

    def __init__(self, num_speculative_tokens: int, most_forced: int, stats: SchedulerStats) -> None:
        self._most = num_speculative_tokens
        self._most_forced = most_forced
        self._stats = stats
        self._in_play = False

    @property
    def are_wanted(self) -> bool:
        """Whether the next step orders any, so that each sequence is told how many."""
        return self._most > 0

    def are_in_play(self, running: Sequence[SequenceState]) -> bool:
        """Whether the worker may hold drafts of a running sequence or be verifying some, or a state is to come back from
        some. Nothing is looked at while none were planned."""
        if self._in_play:
            self._in_play = any(map(_has_drafts, running))
        return self._in_play

    def order(self, sequence: SequenceState, plan: StepPlan, num_known: int, num_unsettled: int) -> int:
        """Enter how many drafts may be proposed behind a step after which `num_known` tokens are known, and at most
        `num_unsettled` besides.

        Returns the positions to reserve behind the step's own, which a proposer with a KV cache may write before the next
        step.
        """
        if not self._most:
            return 0
        budget = self._room(sequence, num_known, self._most)
        if budget == 0:
            return 0
        plan.draft_budget[sequence.slot] = budget
        return self._room(sequence, num_known + num_unsettled, self._most)

    def follow(self, sequence: SequenceState, plan: StepPlan) -> None:
        """Have a draft with a KV cache keep up with a sequence that needs no drafts behind the step."""
        if self._most:
            plan.draft_budget[sequence.slot] = 0

    def withdraw(self, sequence: SequenceState, plan: StepPlan) -> None:
        """Allow no proposals for the next step: there is no room for them."""
        if sequence.slot in plan.draft_budget:
            plan.draft_budget[sequence.slot] = 0

    def fitting(self, sequence: SequenceState, num_known: int) -> int:
        """The drafts that a step may verify behind `num_known` tokens."""
        return self._room(sequence, num_known, sequence.num_drafts)

    def begin(self, sequence: SequenceState, plan: StepPlan, num_verified: int) -> None:
        """A step is planned that verifies at most so many drafts of a sequence: enter that. Before the step has a result, the
        worker may hold as many as were ordered."""
        if num_verified or sequence.num_unsettled:
            plan.num_drafts[sequence.slot] = num_verified
            sequence.num_unsettled += num_verified
        sequence.num_drafts = plan.draft_budget.get(sequence.slot, 0)
        self._in_play = self._in_play or bool(sequence.num_drafts or sequence.num_unsettled)

    def accept(self, slot: Slot, plan: StepPlan, result: StepResult, num_tokens: int) -> bool:
        """Count the drafts of a step that gave `num_tokens`; False when these are more than the drafts allow."""
        num_drafts = result.num_verified.get(slot, 0)
        if num_drafts:
            self._stats.spec_num_drafts += 1
            self._stats.spec_num_draft_tokens += num_drafts
            self._stats.spec_num_accepted_tokens += min(num_tokens - 1, num_drafts)
        return num_tokens - 1 <= num_drafts <= plan.num_drafts.get(slot, 0)

    def settle(self, sequence: SequenceState, plan: StepPlan, result: StepResult, *, is_newest: bool) -> None:
        """A step's tokens are known, and how many drafts the worker holds since. is_newest: whether no later step is planned
        that computes the sequence; otherwise that step has taken these drafts."""
        slot = sequence.slot
        sequence.num_unsettled -= plan.num_drafts.get(slot, 0)
        num_proposed = result.num_proposed.get(slot, 0)
        is_forced = not self._most and num_proposed > 0 and sequence.request.grammar is not None
        if is_newest:
            allowed = self._most_forced if is_forced else plan.draft_budget.get(slot, 0)
            sequence.num_drafts = self._room(sequence, len(sequence.token_ids), min(allowed, num_proposed))
        elif is_forced:  # what is forced is longer than one token, so there will be more of it
            sequence.num_drafts = self._most_forced
        self._in_play = self._in_play or sequence.num_drafts > 0

    def _room(self, sequence: SequenceState, length: int, most: int) -> int:
        """Drafts that fit behind `length` known tokens; the token that a step samples needs a place of its own."""
        num_left = sequence.max_length - length - 1
        return max(min(most, num_left), 0)


def _has_drafts(sequence: SequenceState) -> bool:
    return sequence.num_drafts > 0 or sequence.num_unsettled > 0 or sequence.is_rolled_back
