"""Cost model of a step's duration, learned from the steps that have been computed.

Owns: `StepCost`: five coefficients, the error of its predictions, and the chunk that fits a time. Never does: measure time,
plan, or judge a step. Called by: the scheduler (sizes chunks), the trace of an engine process (predicts a step's end).
Both share one instance, which only one of them teaches: with a stall limit the scheduler, since it sees every step.

The time of a step is the sum of a constant, a part for each row that decodes, a part for each prompt token, and a part for
each key that these read. Each observation scales the coefficients by the ratio of measured to predicted time, in
proportion to their part in the prediction. So none becomes negative, units do not matter, and a coefficient that had no
part stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, sqrt
from typing import NamedTuple, Self

import numpy as np

from core.api.step_plan import StepPlan, StepResult

FIRST_TERMS = {"step": 1.0, "decode": 0.1, "decode_key": 1e-5, "prompt_token": 0.05, "prompt_key": 2e-6}
"""Initial cost of each term, in units of a step's constant. Only the ratios matter, until steps of all kinds were seen."""

RATE = 0.3
"""Fraction of the error that one observation corrects."""

MOST_SURPRISE = 1.5
"""Limit of the ratio of one observation to its prediction; larger ratios are clipped to it. An outlier then does little
harm, and a machine that has become twice as slow is recognized after a few steps."""

QUANTILE = 0.95
"""Share of steps that end within their prediction times `margin`."""

QUANTILE_RATE = 0.02
LEAST_MARGIN = 1.05
MOST_MARGIN = 3.0


class StepWork(NamedTuple):
    """The size of a step.

    num_prompt_tokens: prompt tokens in the chunks of the step.
    num_decodes:       tokens of the rows that continue a decode, drafts included.
    context_tokens:    keys that these rows read: the sum of their lengths.
    prompt_keys:       keys that tokens of prompts read: the sum, over these tokens, of the tokens before them.
    """

    num_prompt_tokens: int = 0
    num_decodes: int = 0
    context_tokens: int = 0
    prompt_keys: int = 0


def work_of(plan: StepPlan, num_decodes: int, result: StepResult | None = None) -> StepWork:
    """Return the size of a planned step whose first `num_decodes` rows continue a decode.

    result: of the step, once it is known. The plan alone only limits the number of drafts.
    """
    num_tokens = plan.total_num_tokens
    if result is not None and plan.num_drafts:
        num_tokens -= sum(plan.num_drafts.values()) - sum(result.num_verified.values())
    context_tokens = int(plan.num_computed[:num_decodes].sum())
    if num_decodes == len(plan.slots):
        return StepWork(0, num_tokens, context_tokens)
    # int64, because the products below exceed int32 for a long prompt.
    lens = plan.query_lens[num_decodes:].astype(np.int64)
    starts = plan.num_computed[num_decodes:]
    num_prompt_tokens = int(lens.sum())
    # A chunk of n tokens from s on reads s + (s + 1) + ... = n * (2 * s + n) / 2 keys, up to n / 2.
    keys = lens * (2 * starts + lens)
    prompt_keys = int(keys.sum()) // 2
    return StepWork(num_prompt_tokens, num_tokens - num_prompt_tokens, context_tokens, prompt_keys)


class StepCost:
    """The cost model of one engine.

    num_observed: number of steps that it has learned from.
    margin:       factor on a prediction within which `QUANTILE` of the steps end; at least `LEAST_MARGIN`.
    """

    __slots__ = ("_coefficients", "margin", "num_observed")

    def __init__(self) -> None:
        self.num_observed = 0
        self.margin = LEAST_MARGIN
        self._coefficients = list(FIRST_TERMS.values())

    @classmethod
    def restored(cls, state: Sequence[float]) -> Self:
        """Return the model with this `state`, or an untrained one when the numbers are no valid state, such as zeros."""
        cost = cls()
        if all(isfinite(number) and number > 0.0 for number in state[:7]):
            cost.num_observed = int(state[0])
            cost.margin, *cost._coefficients = state[1:7]
        return cost

    def state(self) -> tuple[float, ...]:
        """Return everything that was learned, as seven numbers; the next engine process starts from them."""
        return (float(self.num_observed), self.margin, *self._coefficients)

    def predict(self, num_prompt_tokens: int, num_decodes: int, context_tokens: int, prompt_keys: int = 0) -> float:
        """Return the seconds of a step of this size (see `StepWork`); 0.0 before anything was observed."""
        if not self.num_observed:
            return 0.0
        step, decode, decode_key, prompt_token, prompt_key = self._coefficients
        decoding = decode * num_decodes + decode_key * context_tokens
        return step + decoding + (prompt_token * num_prompt_tokens + prompt_key * prompt_keys)

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn that a step of this size took `seconds`. A step that took no time is ignored."""
        if seconds <= 0.0:
            return
        sizes = (1, work.num_decodes, work.context_tokens, work.num_prompt_tokens, work.prompt_keys)
        terms = [each * size for each, size in zip(self._coefficients, sizes, strict=True)]
        predicted = sum(terms)
        surprise = seconds / predicted
        if not self.num_observed:
            self.num_observed = 1
            # The first observation gives the coefficients their unit.
            self._coefficients = [each * surprise for each in self._coefficients]
            return
        self.num_observed += 1
        self._learn_margin(surprise)
        surprise = min(max(surprise, 1.0 / MOST_SURPRISE), MOST_SURPRISE)
        squares = sum(term * term for term in terms)
        factor = RATE * (surprise - 1.0) * predicted / squares
        self._coefficients = [
            each * (1.0 + factor * term) for each, term in zip(self._coefficients, terms, strict=True)
        ]

    def fitting_chunk(self, start: int, seconds: float) -> int:
        """Return the largest number of prompt tokens from position `start` on that most likely add at most `seconds`.

        It is 0 before anything was observed.
        """
        if not self.num_observed or seconds <= 0.0:
            return 0
        # n tokens cost token * n + key * (start * n + n * n / 2): solved for n.
        prompt_token, prompt_key = self._coefficients[3:]
        token = prompt_token + prompt_key * start
        room = seconds / self.margin
        root = sqrt(token * token + 2.0 * prompt_key * room)
        return int(2.0 * room / (token + root))

    def _learn_margin(self, surprise: float) -> None:
        """Move the margin so that `QUANTILE` of the ratios are below it."""
        above = surprise > self.margin
        # Up by 0.95 for 1 step in 20, down by 0.05 for the other 19: both moves cancel where 95% lie below.
        step = QUANTILE if above else QUANTILE - 1.0
        margin = self.margin * (1.0 + QUANTILE_RATE * step)
        self.margin = min(max(margin, LEAST_MARGIN), MOST_MARGIN)
