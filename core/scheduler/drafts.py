"""How many draft tokens a sequence may have, and what became of them.

Owns: the draft budget under the control's choice and the sequence's length limits, the drafts of forced text that come
without a budget, and the counters of speculation. Never does: propose or verify drafts, or choose what pays
(`DraftControl` does). Called by: the scheduler.

A step that verifies d drafts adds between 1 and d + 1 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.config import SchedulerConfig
from core.api.messages import SchedulerStats
from core.api.step_plan import StepPlan, StepResult
from core.scheduler.draft_control import DraftControl
from core.scheduler.running import RunningSet
from core.scheduler.sequence import SequenceState
from core.scheduler.step import Step
from core.scheduler.step_cost import StepCost


class DraftRules:
    """Rules for drafts of at most `num_speculative_tokens` a step. They are counted in `stats`.

    Of a sequence with a grammar, the worker may also send the tokens of forced text, `most_forced` a step, which nobody
    planned for: they take no blocks and no memory but those of the step that verifies them.

    control: chooses how many drafts there are; None without speculation.
    """

    def __init__(self, config: SchedulerConfig, most_forced: int, stats: SchedulerStats, cost: StepCost) -> None:
        self.control: DraftControl | None = None
        if config.num_speculative_tokens:
            self.control = DraftControl(config, cost)
        self._config = config
        self._most_forced = most_forced
        self._stats = stats
        self._in_play = False

    @property
    def are_wanted(self) -> bool:
        """Whether the step that is planned orders any, so that each sequence is told how many."""
        return self.control is not None and self.control.is_on

    def enter(self, sequence: SequenceState, num_others: int) -> None:
        """A sequence has come, to `num_others` that wait or run."""
        most = self._config.disable_drafts_by_batch_size
        if most and num_others >= most:
            sequence.no_drafts = "batch_size"

    def start(self, sequence: SequenceState) -> None:
        """A sequence has got a slot."""
        if self.control is None:
            return
        self.control.start(sequence.slot)
        if sequence.no_drafts:
            self.control.bar(sequence.slot)

    def begin(self, running: RunningSet) -> None:
        """A step is about to be planned."""
        if self.control is not None:
            self.control.begin(running)

    def finish(self, step: Step, result: StepResult, seconds: float) -> None:
        """The results of a step have been read. seconds: that it took; 0.0 where nobody goes by that."""
        if self.control is not None:
            self.control.finish(step, result, seconds)

    def are_in_play(self, sequences: Sequence[SequenceState]) -> bool:
        """Whether any of these has drafts to verify, or has to come back from some; nothing is looked at where none were kept
        since the last call."""
        if self._in_play:
            self._in_play = any(sequence.drafts or sequence.is_rolled_back for sequence in sequences)
        return self._in_play

    def why_none(self, sequence: SequenceState) -> str:
        """Why a sequence has no drafts at present, a name of `NO_DRAFTS_CAUSES`; empty where it may have some."""
        if self.control is None:
            return ""
        return sequence.no_drafts or self.control.reason

    def report(self, stats: SchedulerStats) -> None:
        """Enter what was counted since the start."""
        control = self.control
        if control is None:
            return
        stats.spec_accepted_by_place = control.acceptance.accepted.tolist()
        stats.spec_draft_seconds = control.seconds
        stats.spec_steps_on = dict(control.num_on)
        stats.spec_steps_off = dict(control.num_off)

    def plan(self, sequence: SequenceState, plan: StepPlan, num_tokens: int) -> int:
        """Enter the drafts that a step of `num_tokens` verifies, and how many may be proposed for the next step.

        Drafts that do not fit are dropped. Returns the positions to reserve behind the step's own, which a proposer
        with a KV cache may write before the next step.
        """
        length = len(sequence.token_ids)
        num_drafts = num_tokens - sequence.num_pending
        if num_drafts < 0:
            return 0
        drafts = sequence.drafts[:num_drafts]
        sequence.drafts = []
        if drafts:
            plan.drafts[sequence.slot] = drafts
        budget = self._budget(sequence, length + 1)
        if budget == 0:
            return 0
        plan.draft_budget[sequence.slot] = budget
        return self._room(sequence, length + 1 + num_drafts, budget)

    def withdraw(self, sequence: SequenceState, plan: StepPlan) -> None:
        """Allow no proposals for the next step: there is no room for them."""
        plan.draft_budget.pop(sequence.slot, None)

    def accept(self, sequence: SequenceState, plan: StepPlan, num_tokens: int) -> bool:
        """Count the drafts of a step that gave `num_tokens`; False when these are more than the drafts allow."""
        num_drafts = len(plan.drafts.get(sequence.slot, ()))
        if num_drafts:
            self._stats.spec_num_drafts += 1
            self._stats.spec_num_draft_tokens += num_drafts
            num_accepted = min(num_tokens - 1, num_drafts)
            self._stats.spec_num_accepted_tokens += num_accepted
            if self.control is not None:
                self.control.verified(sequence.slot, num_drafts, num_accepted)
        return num_tokens <= num_drafts + 1

    def keep(self, sequence: SequenceState, plan: StepPlan, proposed: list[int] | None) -> None:
        """Keep proposals for the next step, as many as were allowed and still fit behind the new tokens."""
        if not proposed:
            sequence.drafts = []
            return
        allowed = plan.draft_budget.get(sequence.slot, 0)
        if self.control is None and sequence.request.grammar is not None:
            allowed = self._most_forced
        num_kept = self._room(sequence, len(sequence.token_ids), allowed)
        sequence.drafts = proposed[:num_kept]
        self._in_play = True

    def _budget(self, sequence: SequenceState, length: int) -> int:
        """Drafts that may be proposed for a sequence, of which `length` tokens will be known."""
        if self.control is None or sequence.no_drafts:
            return 0
        limit = self._config.draft_max_model_len
        if limit and length >= limit:
            sequence.no_drafts = "max_model_len"
            self.control.bar(sequence.slot)
            return 0
        most = self.control.budget(sequence.slot)
        if limit:
            most = min(most, limit - length)
        return self._room(sequence, length, most)

    def _room(self, sequence: SequenceState, length: int, most: int) -> int:
        """Drafts that fit behind `length` known tokens; the token that a step samples needs a place of its own."""
        num_left = sequence.max_length - length - 1
        return max(min(most, num_left), 0)
