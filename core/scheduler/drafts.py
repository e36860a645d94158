"""Rules for draft tokens: how many a sequence may have, and the counts of accepted ones.

Owns: the draft budget under the advice and the sequence's length limits, the drafts of forced text that come without a budget,
and the counters of speculation. Never does: propose, hold or verify drafts (the worker does), or find out how many pay (a
`StepAdvice` does). Called by: the scheduler.

A step that verifies d drafts adds between 1 and d + 1 tokens. The worker reports how many drafts it has, so a plan knows
what it verifies, unless it is made ahead. Then it allows for as many as were ordered, and until the results arrive a
sequence may be up to `num_unsettled` tokens longer than its confirmed length.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.config import SchedulerConfig
from core.api.sequence_record import NO_DRAFTS_CAUSES
from core.api.stats import SchedulerStats
from core.api.step_plan import Slot, StepPlan, StepResult
from core.kv.snapshots import Snapshots
from core.scheduler.running import RunningSet
from core.scheduler.sequence import SequenceState
from core.scheduler.step import Step
from core.scheduler.step_advice import StepAdvice


class DraftRules:
    """Rules for drafts of at most `num_speculative_tokens` a step, owned by the scheduler's state. Counts go to `stats`.

    For a sequence with a grammar, the worker may also have the tokens of forced text, up to `most_forced` a step, which no
    budget ordered. They take no blocks and no memory but those of the step that verifies them.

    advice: chooses how many drafts there are; None without speculation.
    """

    def __init__(
        self, config: SchedulerConfig, most_forced: int, stats: SchedulerStats, advice: StepAdvice | None
    ) -> None:
        self.advice = advice
        self._config = config
        self._max_forced = most_forced
        self._stats = stats
        self._in_play = False

    @property
    def are_wanted(self) -> bool:
        """Whether the next step orders drafts; its plan then has a budget for each sequence."""
        return self.advice is not None and self.advice.is_on

    def switch_off(self, reason: str) -> None:
        """Plan without drafts from now on, because the worker's proposer is off. reason: a sentence."""
        self._stats.spec_off = reason
        if self.advice is not None:
            self.advice.stop()

    def enter(self, sequence: SequenceState, num_others: int) -> None:
        """Decide whether a new sequence may have drafts, given `num_others` that wait or run."""
        most = self._config.disable_drafts_by_batch_size
        if most and num_others >= most:
            sequence.no_drafts = "batch_size"

    def seat(self, sequence: SequenceState) -> None:
        """A sequence has got a slot."""
        if self.advice is None:
            return
        self.advice.start(sequence.slot)
        if sequence.no_drafts:
            self.advice.bar(sequence.slot)

    def begin_step(self, running: RunningSet) -> None:
        """A step is about to be planned."""
        if self.advice is not None:
            self.advice.begin(running)

    def finish_step(self, step: Step, result: StepResult, seconds: float) -> None:
        """Learn from the results of a step. seconds: its duration; 0.0 where the advice does not depend on it."""
        if self.advice is not None:
            self.advice.finish(step, result, seconds)

    def are_in_play(self, running: Sequence[SequenceState]) -> bool:
        """Whether any running sequence may have drafts with the worker or in a step in flight, or is to be rolled back.

        O(1) while no drafts were planned.
        """
        if self._in_play:
            self._in_play = any(map(_has_drafts, running))
        return self._in_play

    def order(self, sequence: SequenceState, plan: StepPlan, num_known: int, num_unsettled: int) -> int:
        """Enter into the plan how many drafts may be proposed after a step.

        num_known: tokens known after the step; up to `num_unsettled` more may be accepted by then.

        Returns the number of positions to reserve after the step's own; a proposer with a KV cache may write them before the
        next step.
        """
        budget = self._budget(sequence, num_known)
        if budget == 0:
            return 0
        plan.draft_budget[sequence.slot] = budget
        return self._room(sequence, num_known + num_unsettled, budget)

    def follow(self, sequence: SequenceState, plan: StepPlan) -> None:
        """Order 0 drafts, so that a draft model with a KV cache still computes the sequence's tokens."""
        if self.are_wanted:
            plan.draft_budget[sequence.slot] = 0

    def withdraw(self, sequence: SequenceState, plan: StepPlan) -> None:
        """Set an ordered budget to 0, because there is no room for the proposals."""
        if sequence.slot in plan.draft_budget:
            plan.draft_budget[sequence.slot] = 0

    def fitting(self, sequence: SequenceState, num_known: int, num_pending: int, snapshots: Snapshots | None) -> int:
        """Number of drafts that a step which computes the last `num_pending` of `num_known` tokens may verify.

        With states, tokens that are computed again take the place of drafts. So however often drafts are rejected, a step never
        has more tokens, and in the end the state advances without any drafts.
        """
        most = self._room(sequence, num_known, sequence.num_drafts)
        if num_pending > 1:
            most = min(most, self._config.num_speculative_tokens + 1 - num_pending)
        if snapshots is not None and most:
            # A step that passed a block edge would leave no state there, for the next turn to begin with.
            most = max(min(most, snapshots.most_drafts(num_known - num_pending, num_pending)), 0)
        return most

    def begin(self, sequence: SequenceState, plan: StepPlan, num_verified: int) -> None:
        """Enter into the plan that a step verifies up to `num_verified` drafts of a sequence.

        Until the step has a result, the worker may have as many new drafts as the plan orders.
        """
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
            num_accepted = min(num_tokens - 1, num_drafts)
            self._stats.spec_num_accepted_tokens += num_accepted
            if self.advice is not None:
                self.advice.verified(slot, num_drafts, num_accepted)
        return num_tokens - 1 <= num_drafts <= plan.num_drafts.get(slot, 0)

    def settle(self, sequence: SequenceState, plan: StepPlan, result: StepResult, *, is_newest: bool) -> None:
        """Update a sequence's drafts from a result, which has its tokens and the number of drafts that the worker now has.

        is_newest: whether no later step is planned that computes the sequence; otherwise that step verifies these drafts.
        """
        slot = sequence.slot
        sequence.num_unsettled -= plan.num_drafts.get(slot, 0)
        num_proposed = result.num_proposed.get(slot, 0)
        ordered = plan.draft_budget.get(slot, 0)
        is_forced = not ordered and num_proposed > 0 and sequence.request.grammar is not None
        if is_newest:
            allowed = self._max_forced if is_forced else ordered
            sequence.num_drafts = self._room(sequence, len(sequence.token_ids), min(allowed, num_proposed))
        elif is_forced:  # forced text is longer than one token, so the worker will have more of it
            sequence.num_drafts = self._max_forced
        self._in_play = self._in_play or sequence.num_drafts > 0

    def why_none(self, sequence: SequenceState) -> str:
        """Why a sequence has no drafts at present, as a sentence; empty where it may have some."""
        if self.advice is None:
            return ""
        cause = sequence.no_drafts or self.advice.reason
        return NO_DRAFTS_CAUSES[cause] if cause else ""

    def report(self, stats: SchedulerStats) -> None:
        """Enter what was counted since the start."""
        if self.advice is not None:
            self.advice.report(stats)

    def _budget(self, sequence: SequenceState, length: int) -> int:
        """Drafts that may be proposed for a sequence, of which `length` tokens will be known."""
        if self.advice is None or sequence.no_drafts:
            return 0
        limit = self._config.draft_max_model_len
        if limit and length >= limit:
            sequence.no_drafts = "max_model_len"
            self.advice.bar(sequence.slot)
            return 0
        most = self.advice.budget(sequence.slot)
        if limit:
            most = min(most, limit - length)
        return self._room(sequence, length, most)

    def _room(self, sequence: SequenceState, length: int, most: int) -> int:
        """Limit `most` drafts to those that fit after `length` known tokens and the token that the step samples."""
        num_left = sequence.max_length - length - 1
        return max(min(most, num_left), 0)


def _has_drafts(sequence: SequenceState) -> bool:
    return sequence.num_drafts > 0 or sequence.num_unsettled > 0 or sequence.is_rolled_back
