"""Limit of the time that streams wait for the prompts of others.

Owns: `StallLimit`: the longest wait between two tokens of a stream, and the count of longer ones; `PromptRoom`: the part of
one step that prompts may take. Never does: plan. Called by: the scheduler (once a step), its state (slots that are taken
and freed), the planner (sizes chunks).

Without `--max-stall-ms` neither of them exists.
"""

from __future__ import annotations

from bisect import bisect_right
from math import nan

import numpy as np
from numpy.typing import NDArray

from core.api.stats import SchedulerStats
from core.api.step_plan import Int32Array, StepPlan, StepResult
from core.scheduler.running import RunningSet
from core.scheduler.sequence import SequenceState
from core.scheduler.step import Step
from core.scheduler.step_clock import StepClock
from core.scheduler.step_cost import StepCost, work_of

LEAST_CHUNK = 16
"""Tokens that the first prompt of a step computes even when none fits, so that a limit which no step can meet does not stop
prompts altogether."""


class StallLimit:
    """The wait between two tokens of each stream, as far as the scheduler controls it.

    limit_s: seconds that a stream may wait.
    stats:   `num_stalls` counts the tokens that came later.
    clock:   clock of the steps.
    """

    def __init__(self, limit_s: float, max_num_seqs: int, stats: SchedulerStats, clock: StepClock) -> None:
        self.limit_s = limit_s
        self.cost = clock.cost
        self._stats = stats
        self._clock = clock
        self._last_token = np.full(max_num_seqs, nan)
        self._is_limited = np.zeros(max_num_seqs, bool)

    def seat(self, sequence: SequenceState) -> None:
        """Start timing a sequence that has got a slot; a preempted one has been waiting since its last token."""
        self._last_token[sequence.slot] = sequence.last_token
        self._is_limited[sequence.slot] = not sequence.request.flex

    def unseat(self, sequence: SequenceState) -> None:
        """Store the time of the last token of a sequence that is about to lose its slot."""
        sequence.last_token = float(self._last_token[sequence.slot])

    def finish(self, step: Step, result: StepResult, running: RunningSet) -> None:
        """Count the stalls of a step that has just ended; its results have not been read yet."""
        now = self._clock.ended
        slots = result.slots
        if step.num_departures != running.num_departures:
            slots = _still_there(slots, step, running)
        waits = now - self._last_token[slots]
        # NaN, for a sequence without a token, compares as False: a first token is no stall.
        late = (waits > self.limit_s) & self._is_limited[slots]
        self._stats.num_stalls += int(late.sum())
        self._last_token[slots] = now


class PromptRoom:
    """The seconds of one step that are left for prompts; unlimited while no stream waits for the step.

    is_soft: the limit is twice as long, and prompts get as long as the streams beyond it. Streams last longer beside the batch
    class, so more prompts fall into their time; this limits the waits for these where there is no `--max-stall-ms`.
    """

    def __init__(self, cost: StepCost, limit_s: float, *, is_soft: bool = False) -> None:
        self._cost = cost
        self._limit_s = limit_s * (1 + is_soft)
        self._is_soft = is_soft
        self._left: float | None = None
        self._taken = 0.0

    @property
    def is_used_up(self) -> bool:
        """Whether no further prompt gets a token in this step."""
        return self._left is not None and not self._cost.fitting_chunk(0, self._left)

    def admit_streams(self, plan: StepPlan) -> None:
        """Set the room that the decodes of `plan` leave: they are streams that wait for the step."""
        work = work_of(plan, len(plan.slots))
        seconds = self._cost.predict(*work) * self._cost.margin
        self._left = max(self._limit_s - seconds, seconds) if self._is_soft else self._limit_s - seconds

    def fitting_decodes(
        self, num_prompt: int, tokens: NDArray[np.int64], keys: NDArray[np.int64], least: int, *, is_flex: bool
    ) -> int:
        """Return how many decodes fit in a step with `num_prompt` prompt tokens; at least `least`.

        tokens, keys: of the decodes up to and including each. is_flex: whether the first one is of the batch class.
        """

        def seconds(row: int) -> float:
            return self._cost.predict(num_prompt, int(tokens[row]), int(keys[row]))

        # Where one row alone takes longer, the others may add half of that, little beside it; half of a long prompt is much.
        limit = max(self._limit_s, 1.5 * self._cost.predict(0, int(tokens[0]), int(keys[0])) * is_flex)
        return least + bisect_right(range(least, len(keys)), limit, key=seconds)

    def chunk(self, start: int, num_tokens: int) -> int:
        """Return how many of `num_tokens` prompt tokens from position `start` on fit; at least one."""
        if self._left is None:
            return num_tokens
        # Only the first prompt exceeds the limit by so much; others get the single token that a chunk must have.
        return min(num_tokens, self._cost.fitting_chunk(start, self._left) or (1 if self._taken else LEAST_CHUNK))

    def take(self, start: int, num_tokens: int, *, completes: bool) -> None:
        """Account for a planned chunk. completes: whether its sequence gets a token and so waits for the step too."""
        prompt_keys = num_tokens * (2 * start + num_tokens) // 2
        empty = self._cost.predict(0, 0, 0)
        alone = self._cost.predict(num_tokens, 0, 0, prompt_keys)
        seconds = (alone - empty) * self._cost.margin
        self._taken += seconds
        if self._left is not None:
            self._left -= seconds
        # The first stream of a step without decodes: from here on the limit holds, and earlier chunks count.
        elif completes:
            self._left = self._limit_s - empty * self._cost.margin - self._taken


def _still_there(slots: Int32Array, step: Step, running: RunningSet) -> Int32Array:
    """Return the slots that still belong to the sequences of the step."""
    found = ((slot, running.at(slot)) for slot in slots.tolist())
    return np.array([slot for slot, each in found if each is not None and each.first_step <= step.number], np.int32)
