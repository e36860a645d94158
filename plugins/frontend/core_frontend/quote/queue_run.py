"""A run of the queue on the cost of steps: when each waiting request has its first token, and when it ends.

Owns: `QueueRun`, arithmetic on numbers of steps and seconds. Never does: know requests by name, read a clock, or learn. Called
by: the forecast of a server.

Where steps with streams take fewer prompt tokens, a step costs what its streams and its prompts do; else all have the streams
of a busy engine, which is as good a guess there, and quicker. Prompts join the open step in the order of their arrival until
its budget of tokens is spent, as in the scheduler, and all that end in a step have their first token at its end. Rows are a
heap of the numbers of the steps at which they become free. So a request costs one operation on the heap, and a thousand of
them less than a millisecond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import NamedTuple

from core.api.scheduler_config import SchedulerConfig
from core.scheduler.step_cost import StepCost


@dataclass(frozen=True, slots=True)
class Rates:
    """What a step and a prompt cost, in seconds.

    step: one step with the rows that are busy. token, key: one prompt token, and one key that it reads.
    budget: prompt tokens of a step without streams. mixed: of a step with streams. weight: see `--queued-prompts-weight`.
    row, rows: the part of `step` that each of the busy rows has, and their number; 0.0: steps cost the same.
    arrivals: requests that come in a second.
    """

    step: float
    token: float
    key: float
    budget: int
    mixed: int
    weight: float
    row: float = 0.0
    rows: int = 0
    arrivals: float = 0.0

    @classmethod
    def of(cls, cost: StepCost, num_rows: int, context: int, config: SchedulerConfig, arrivals: float = 0.0) -> Rates:
        """Return the rates of a trained cost model. context: keys that all busy rows read together."""
        nothing = cost.predict(0, 0, 0)
        step = cost.predict(0, num_rows, context)
        budget, mixed = budgets(config)
        return cls(
            step=step,
            token=(cost.predict(1000, 0, 0) - nothing) / 1000,
            key=(cost.predict(0, 0, 0, 1_000_000) - nothing) / 1_000_000,
            budget=budget,
            mixed=mixed,
            weight=config.queued_prompts_weight,
            row=(step - nothing) / max(num_rows, 1) if mixed < budget else 0.0,
            rows=num_rows,
            arrivals=arrivals,
        )

    def seconds(self, num_streams: int) -> float:
        """Return the seconds of a step with so many streams and no prompt."""
        return self.step - self.row * (self.rows - num_streams)

    def room(self, num_streams: int, num_behind: float) -> float:
        """Return the prompt tokens of a step. num_behind: prompts behind the first one."""
        return room_of(self.budget, self.mixed, self.weight, num_streams, num_behind)

    def prompt(self, num_tokens: float, start: float = 0.0) -> float:
        """Return the seconds that a prompt adds to steps. start: tokens before it that are cached."""
        return num_tokens * (self.token + self.key * (start + num_tokens / 2))


def budgets(config: SchedulerConfig) -> tuple[int, int]:
    """Return the limits of prompt tokens in a step without streams, and in one with some."""
    budget = config.max_num_batched_tokens
    return budget, min(config.max_num_mixed_batched_tokens or budget, budget)


def room_of(budget: int, mixed: int, weight: float, num_streams: int, num_behind: float) -> float:
    """Return the prompt tokens of a step, as the scheduler's admission does. num_behind: prompts behind the first one."""
    if num_streams <= 0:
        return budget
    return min(max(mixed, weight * mixed * num_behind / num_streams), budget)


class Job(NamedTuple):
    """A request that waits. prompt, start: tokens to compute, and those cached before them. length: expected tokens of each
    of its `n` answers."""

    prompt: float
    start: float
    length: float
    n: int


class QueueRun:
    """The queue from now on.

    begin:     seconds from now at which the step in progress began, so at most 0.
    remaining: steps until each running answer ends, as expected.
    num_rows:  limit on answers that run at once.
    num_jobs:  number of requests that will be added.
    firsts:    for each waiting request, in order, the seconds to its first token.
    ends:      the seconds to its end, in the same order.
    """

    def __init__(self, rates: Rates, begin: float, remaining: Sequence[float], num_rows: int, num_jobs: int) -> None:
        self.rates = rates
        self._num_rows = num_rows
        self._num_streams = len(remaining)
        self._num_left: float = num_jobs
        self._varies = rates.mixed < rates.budget
        self._budget = self._room()
        self._step = rates.seconds(self._num_streams)
        self.firsts: list[float] = []
        self.ends: list[float] = []
        self._rows = sorted(remaining)[:num_rows] + [0.0] * max(num_rows - len(remaining), 0)
        heapify(self._rows)
        # Streams that end before the step of a number, and those that join after the open one.
        self._ending = Counter(max(int(steps), 1) for steps in remaining)
        self._num_joining = 0
        self._begin = begin
        self._number = 0
        self._tokens = 0.0
        self._seconds = 0.0
        self._is_open = bool(remaining)
        self._in_step: list[tuple[int, float]] = []

    def add(self, jobs: Sequence[Job]) -> None:
        """Let requests join the end of the queue. The last step stays open for further ones."""
        rows, firsts, in_step, ending, varies = self._rows, self.firsts, self._in_step, self._ending, self._varies
        token, half_key = self.rates.token, self.rates.key / 2
        number, budget, in_open = self._number, self._budget, self._tokens
        for prompt, start, length, n in jobs:
            seconds = prompt * (token + half_key * (2 * start + prompt))
            in_open += prompt
            # The usual request joins the open step; this loop is most of the time of a quote while many wait.
            if rows[0] >= number + 1 or in_open > budget:
                seconds, in_open = self._spill(prompt, seconds, int(rows[0]))
                number, budget = self._number, self._budget
            self._seconds += seconds
            self._tokens = in_open
            in_step.append((len(firsts), length))
            firsts.append(0.0)
            if varies:
                ending[int(number + max(length, 1.0))] += n
                self._num_joining += n
            heapreplace(rows, number + length)
            for _ in range(n - 1):
                heapreplace(rows, number + length)
        self._is_open = self._is_open or bool(in_step)

    def close(self) -> None:
        """End the step that requests join."""
        if not self._is_open:
            return
        self._is_open = False
        took = self._step + self._seconds
        self._begin = end = self._begin + took
        if self._varies:
            self._num_streams = min(self._num_streams + self._num_joining, self._num_rows)
            self._num_joining = 0
            # Those that come meanwhile queue up behind the others.
            self._num_left += self.rates.arrivals * took - len(self._in_step)
            self._advance(self._number + 1)
        else:
            self._number += 1
        step = self._step
        firsts, ends, in_step = self.firsts, self.ends, self._in_step
        for index, length in in_step:
            firsts[index] = end
            ends.append(end + length * step)
        in_step.clear()
        self._seconds = self._tokens = 0.0

    def times(self) -> tuple[list[float], list[float]]:
        """Return the seconds to the first token and to the end of each request, in order, also of those in the open step."""
        now = self._begin + self._step + self._seconds
        count = len(self.ends)
        opened = [now] * (len(self.firsts) - count)
        lengths = [length for _, length in self._in_step]
        return self.firsts[:count] + opened, self.ends + [now + length * self.rates.step for length in lengths]

    def begin_now(self) -> None:
        """Let the next step begin not before now: an engine without work waits for some."""
        self._begin = max(self._begin, 0.0)

    def copy(self) -> QueueRun:
        """Return a run that goes on from here on its own, without the times of the requests so far."""
        other = QueueRun(self.rates, self._begin, (), self._num_rows, 0)
        other._num_streams, other._budget, other._num_left = self._num_streams, self._budget, self._num_left
        other._num_joining, other._step = self._num_joining, self._step
        other._rows, other._ending = self._rows.copy(), self._ending.copy()
        other._number, other._tokens, other._seconds = self._number, self._tokens, self._seconds
        other._is_open = self._is_open
        return other

    def last(self) -> float:
        """Return the seconds to the first token of the request that joined last, if none comes after it."""
        return self._begin + self._step + self._seconds

    def _spill(self, prompt: float, seconds: float, row_free: int) -> tuple[float, float]:
        """Fill steps with a prompt for which the open one has no row, or too few tokens.

        row_free: number of the step in which a row is free. Returns the seconds of its last part, and the tokens of that step.
        """
        self._is_open = self._is_open or bool(self._in_step)
        if row_free > self._number:
            self.close()
            if row_free > self._number:
                self._begin += (row_free - self._number) * self._step
                if self._varies:
                    self._advance(row_free)
                self._number = row_free
            if prompt <= self._budget:
                return seconds, prompt
        each = seconds / max(prompt, 1.0)
        left = prompt
        while self._tokens + left > self._budget:
            here = max(self._budget - self._tokens, 0.0)
            self._seconds += here * each
            left -= here
            self._is_open = True
            self.close()
        return left * each, self._tokens + left

    def _advance(self, number: int) -> None:
        """Go on to the step of a number, before which some streams end."""
        for each in range(self._number + 1, number + 1):
            self._num_streams = max(self._num_streams - self._ending.pop(each, 0), 0)
        self._number = number
        self._budget = self._room()
        self._step = self.rates.seconds(self._num_streams)

    def _room(self) -> float:
        """Return the prompt tokens of the next step. Prompts without a free row do not make it larger."""
        behind = min(self._num_left, self._num_rows - self._num_streams) - 1
        return self.rates.room(self._num_streams, behind)
