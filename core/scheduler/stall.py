"""How long streams wait for the prompts of others.

Owns: `StallLimit`: the longest wait between two tokens of a stream, and the count of those that were longer; `PromptRoom`: the
part of one step that prompts may take. Never does: plan. Called by: the scheduler (once a step), its state (slots that come
and go), the planner (sizes chunks).

Without `--max-stall-ms` there is neither of them.
"""

from __future__ import annotations

from math import nan

import numpy as np

from core.api.messages import SchedulerStats
from core.api.step_plan import Int32Array, StepPlan, StepResult
from core.scheduler.running import RunningSet
from core.scheduler.sequence import SequenceState
from core.scheduler.step import Step
from core.scheduler.step_clock import StepClock
from core.scheduler.step_cost import work_of

LEAST_CHUNK = 16
"""Tokens that the first prompt of a step computes where not even one fits: a limit that no step can keep starves nobody."""


class StallLimit:
    """The wait between two tokens of each stream, as far as the scheduler decides on it.

    limit_s: seconds that a stream may wait.
    stats:   `num_stalls` counts the tokens that came later.
    clock:   of the steps.
    """

    def __init__(self, limit_s: float, max_num_seqs: int, stats: SchedulerStats, clock: StepClock) -> None:
        self.limit_s = limit_s
        self.cost = clock.cost
        self._stats = stats
        self._clock = clock
        self._last_token = np.full(max_num_seqs, nan)

    def seat(self, sequence: SequenceState) -> None:
        """A sequence has got a slot; one that was preempted has been waiting since its last token."""
        self._last_token[sequence.slot] = sequence.last_token

    def unseat(self, sequence: SequenceState) -> None:
        """A sequence that goes on later is about to lose its slot."""
        sequence.last_token = float(self._last_token[sequence.slot])

    def finish(self, step: Step, result: StepResult, running: RunningSet) -> None:
        """A step has just ended; its results have not been read yet."""
        now = self._clock.ended
        slots = result.slots
        if step.num_departures != running.num_departures:
            slots = _still_there(slots, step, running)
        waits = now - self._last_token[slots]
        late = waits > self.limit_s
        self._stats.num_stalls += int(late.sum())
        self._last_token[slots] = now


class PromptRoom:
    """The seconds of one step that are left for prompts; any number while nobody waits for the step."""

    def __init__(self, limit: StallLimit) -> None:
        self._cost = limit.cost
        self._limit_s = limit.limit_s
        self._left: float | None = None
        self._taken = 0.0

    @property
    def is_used_up(self) -> bool:
        """Whether no further prompt gets a token in this step."""
        return self._left is not None and not self._cost.fitting_chunk(0, self._left)

    def admit_streams(self, plan: StepPlan) -> None:
        """The rows of `plan` are streams, which wait for the step."""
        work = work_of(plan, len(plan.slots))
        self._left = self._limit_s - self._cost.predict(*work) * self._cost.margin

    def chunk(self, start: int, num_tokens: int) -> int:
        """How many of `num_tokens` tokens of a prompt fit, from position `start` on; at least one."""
        if self._left is None:
            return num_tokens
        fitting = self._cost.fitting_chunk(start, self._left)
        if not fitting:
            fitting = 1 if self._taken else LEAST_CHUNK
        return min(num_tokens, fitting)

    def take(self, start: int, num_tokens: int, *, completes: bool) -> None:
        """A chunk is planned. completes: whether it gives its sequence a token, which then waits for the step too."""
        prompt_keys = num_tokens * (2 * start + num_tokens) // 2
        empty = self._cost.predict(0, 0, 0)
        alone = self._cost.predict(num_tokens, 0, 0, prompt_keys)
        seconds = (alone - empty) * self._cost.margin
        self._taken += seconds
        if self._left is not None:
            self._left -= seconds
        elif completes:
            self._left = self._limit_s - empty * self._cost.margin - self._taken


def _still_there(slots: Int32Array, step: Step, running: RunningSet) -> Int32Array:
    """The slots that still belong to the sequences of the step."""
    found: list[int] = []
    for slot in slots.tolist():
        sequence = running.at(slot)
        if sequence is not None and sequence.first_step <= step.number:
            found.append(slot)
    return np.array(found, np.int32)
