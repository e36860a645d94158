"""How many draft tokens each sequence of a step may have.

Owns: `StepAdvice`, the contract of the choice; `FixedAdvice`, the largest number that the configuration allows. Never does:
plan, propose or verify. Called by: the rules for drafts.

Distributions offer a better choice as the entry point `core.step_advice`: see `AdviceFactory`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

import numpy as np

from core.api.config import SchedulerConfig
from core.api.stats import SchedulerStats
from core.api.step_plan import Slot, StepResult
from core.scheduler.running import RunningSet
from core.scheduler.step import Step
from core.scheduler.step_cost import StepCost

REST = 16
"""Steps without drafts between two choices."""


class StepAdvice(Protocol):
    """The choice for one engine. How many drafts there are never changes a token.

    is_on:  whether sequences of the step that is planned may be given drafts.
    reason: why drafts are not worth it at present, a name of `NO_DRAFTS_CAUSES`; empty when they are.
    """

    is_on: bool
    reason: str

    def start(self, slot: Slot) -> None:
        """Expect another sequence in a slot."""
        ...

    def bar(self, slot: Slot) -> None:
        """Allow the sequence of a slot no drafts from now on."""
        ...

    def stop(self) -> None:
        """Allow no drafts from now on."""
        ...

    def begin(self, running: RunningSet) -> None:
        """Choose for the step that is about to be planned."""
        ...

    def budget(self, slot: Slot) -> int:
        """Largest number of drafts for a sequence of the step. It is asked once a step for each."""
        ...

    def verified(self, slot: Slot, num_drafts: int, num_accepted: int) -> None:
        """Learn how many drafts of a sequence were verified and accepted by the step whose results are being read."""
        ...

    def finish(self, step: Step, result: StepResult, seconds: float) -> None:
        """Learn from a step whose results have been read. seconds: its duration; 0.0 where nothing goes by that."""
        ...

    def report(self, stats: SchedulerStats) -> None:
        """Enter the counts since the start."""
        ...


AdviceFactory = Callable[[SchedulerConfig, StepCost], StepAdvice]
"""Makes the choice for an engine with `adaptive_drafts`. It may read the cost of steps; the scheduler teaches it."""


class FixedAdvice:
    """As many drafts as the configuration allows in a batch of that size."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.is_on = False
        self.reason = ""
        self._config = config
        self._barred = np.zeros(config.max_num_seqs, bool)
        self._budgets: dict[Slot, int] = {}
        self._fresh_budget = 0
        self._num_fresh = 0
        self._num_resting = 0
        self._cause = ""
        self._is_stopped = False
        self._num_off: Counter[str] = Counter()
        self._num_on: Counter[int] = Counter()
        self._places = np.arange(config.num_speculative_tokens)
        self._accepted = np.zeros(config.num_speculative_tokens, np.int64)
        self._draft_seconds = 0.0
        self._verified: dict[Slot, tuple[int, int]] = {}

    def start(self, slot: Slot) -> None:
        """Expect another sequence in a slot."""
        self._barred[slot] = False

    def bar(self, slot: Slot) -> None:
        """Allow the sequence of a slot no drafts from now on."""
        self._barred[slot] = True

    def stop(self) -> None:
        """Allow no drafts from now on."""
        self._is_stopped = True

    def begin(self, running: RunningSet) -> None:
        """Choose for the step that is about to be planned, unless the last choice still rests."""
        if self._is_stopped:
            self._rest("failed", REST)
        elif self._num_resting:
            self._num_resting -= 1
            self._num_off[self._cause] += 1
            self.is_on = False
        else:
            most = self._limit(len(running.view.slots))
            if most:
                self._choose(running, most)
            else:
                self.reason = "batch_size"
                self._rest("batch_size", REST)

    def budget(self, slot: Slot) -> int:
        """Largest number of drafts for a sequence of the step. It is asked once a step for each."""
        if not self.is_on:
            return 0
        budget = self._budgets.get(slot)
        if budget is not None:
            return budget
        if not self._num_fresh or self._barred[slot]:
            return 0
        self._num_fresh -= 1
        return self._fresh_budget

    def verified(self, slot: Slot, num_drafts: int, num_accepted: int) -> None:
        """Count the drafts of a sequence that the step whose results are being read has verified."""
        self._verified[slot] = num_drafts, num_accepted

    def finish(self, step: Step, result: StepResult, seconds: float) -> None:
        """Count the drafts of a step whose results have been read."""
        if self._verified:
            num_accepted = np.array([accepted for _, accepted in self._verified.values()])
            reached = num_accepted[:, None] > self._places
            self._accepted += reached.sum(axis=0)
            self._verified = {}
        self._draft_seconds += result.draft_seconds

    def report(self, stats: SchedulerStats) -> None:
        """Enter the counts since the start."""
        stats.spec_accepted_by_place = self._accepted.tolist()
        stats.spec_draft_seconds = self._draft_seconds
        stats.spec_steps_on = dict(self._num_on)
        stats.spec_steps_off = dict(self._num_off)

    def _limit(self, num_seqs: int) -> int:
        """Largest number of drafts of a sequence in a batch of this size."""
        most = self._config.num_speculative_tokens
        for first, last, limit in self._config.drafts_by_batch_size:
            if first <= num_seqs <= last:
                return min(limit, most)
        return most

    def _choose(self, running: RunningSet, most: int) -> None:
        """Choose the budgets of a step, each from 0 to `most`."""
        self.reason = ""
        self._fresh_budget = most
        self._turn_on({}, self._config.max_num_seqs)

    def _rest(self, cause: str, num_steps: int) -> None:
        """Allow no drafts in this step and the next ones, `num_steps` in all."""
        self.is_on = False
        self._num_off[cause] += 1
        self._cause = cause
        self._num_resting = num_steps - 1

    def _turn_on(self, budgets: dict[Slot, int], num_fresh: int) -> None:
        """Allow drafts: by slot, and `_fresh_budget` each for up to `num_fresh` other sequences."""
        self.is_on = True
        self._budgets = budgets
        self._num_fresh = num_fresh
        most = max(budgets.values(), default=self._fresh_budget)
        self._num_on[most] += 1
