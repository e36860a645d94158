"""What a step costs, learned from the steps that have been computed.

Owns: `StepCost`: five coefficients, the error of its predictions, and the chunk that fits a time. Never does: measure time,
plan, or judge a step. Called by: the scheduler (sizes chunks), the trace of an engine process (predicts a step's end).
They share one, which one of them teaches: the scheduler where streams have a limit of stalls, since it sees every step.

A step takes a time of its own, one for each row that decodes and for each token of a prompt, and one for the keys that
these read. Each observation scales the coefficients by the ratio of measured and predicted time, a coefficient the more,
the larger its part in the prediction: none ever becomes negative, units do not matter, and one that had no part stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, sqrt
from typing import NamedTuple, Self

import numpy as np

from core.api.step_plan import StepPlan, StepResult

FIRST_TERMS = {
    "step": 1.0,
    "decode": 0.1,
    "decode_key": 1e-5,
    "prompt_token": 0.05,
    "prompt_key": 2e-6,
}
"""The cost of each term, in units of a step's own. Only the ratios matter, and only until steps of all kinds were seen."""

RATE = 0.3
"""How far one observation corrects the coefficients."""

MOST_SURPRISE = 1.5
"""The factor by which one observation may differ from its prediction; what differs more counts as that much. An outlier does
little harm so, and a machine that has become twice as slow is known after a few steps."""

QUANTILE = 0.95
"""The share of steps that `predict_most` is meant for."""

QUANTILE_RATE = 0.02
LEAST_MARGIN = 1.05
MOST_MARGIN = 3.0


class StepWork(NamedTuple):
    """The size of a step.

    num_prompt_tokens: tokens of prompts, in chunks.
    num_decodes:       tokens of the rows that continue a decode, drafts among them.
    context_tokens:    keys that these rows read: the sum of their lengths.
    prompt_keys:       keys that tokens of prompts read: the sum, over these tokens, of the tokens before them.
    """

    num_prompt_tokens: int = 0
    num_decodes: int = 0
    context_tokens: int = 0
    prompt_keys: int = 0


def work_of(plan: StepPlan, num_decodes: int, result: StepResult | None = None) -> StepWork:
    """The size of a planned step whose first `num_decodes` rows continue a decode. result: of the step, once it is there; a
    plan only says how many drafts there may be."""
    num_tokens = plan.total_num_tokens
    if result is not None and plan.num_drafts:
        num_tokens -= sum(plan.num_drafts.values()) - sum(result.num_verified.values())
    context_tokens = int(plan.num_computed[:num_decodes].sum())
    if num_decodes == len(plan.slots):
        return StepWork(0, num_tokens, context_tokens)
    lens = plan.query_lens[num_decodes:].astype(np.int64)
    starts = plan.num_computed[num_decodes:]
    num_prompt_tokens = int(lens.sum())
    keys = lens * (2 * starts + lens)
    prompt_keys = int(keys.sum()) // 2
    return StepWork(num_prompt_tokens, num_tokens - num_prompt_tokens, context_tokens, prompt_keys)


class StepCost:
    """The cost model of one engine.

    num_observed: steps that it has learned from.
    margin:       factor on a prediction below which most steps end, from `LEAST_MARGIN` on.
    """

    __slots__ = ("_decode", "_decode_key", "_prompt_key", "_prompt_token", "_step", "margin", "num_observed")

    def __init__(self) -> None:
        self.num_observed = 0
        self.margin = LEAST_MARGIN
        self._step = FIRST_TERMS["step"]
        self._decode = FIRST_TERMS["decode"]
        self._decode_key = FIRST_TERMS["decode_key"]
        self._prompt_token = FIRST_TERMS["prompt_token"]
        self._prompt_key = FIRST_TERMS["prompt_key"]

    @classmethod
    def restored(cls, state: Sequence[float]) -> Self:
        """The model whose `state` this was; one that knows nothing for numbers that are no state, such as zeros."""
        cost = cls()
        if all(isfinite(number) and number > 0.0 for number in state[:7]):
            cost.num_observed = int(state[0])
            cost.margin, cost._step, cost._decode, cost._decode_key, cost._prompt_token, cost._prompt_key = state[1:7]
        return cost

    def state(self) -> tuple[float, ...]:
        """Seven numbers that hold all that was learned."""
        coefficients = (self._step, self._decode, self._decode_key, self._prompt_token, self._prompt_key)
        return (float(self.num_observed), self.margin, *coefficients)

    def predict(self, num_prompt_tokens: int, num_decodes: int, context_tokens: int, prompt_keys: int = 0) -> float:
        """Seconds of such a step (see `StepWork`); 0.0 before anything was observed."""
        if not self.num_observed:
            return 0.0
        decoding = self._decode * num_decodes + self._decode_key * context_tokens
        prompts = self._prompt_token * num_prompt_tokens + self._prompt_key * prompt_keys
        return self._step + decoding + prompts

    def observe(self, work: StepWork, seconds: float) -> None:
        """A step of this size took so long. Nothing is learned from one that took no time."""
        if seconds <= 0.0:
            return
        terms = (
            self._step,
            self._decode * work.num_decodes,
            self._decode_key * work.context_tokens,
            self._prompt_token * work.num_prompt_tokens,
            self._prompt_key * work.prompt_keys,
        )
        predicted = sum(terms)
        surprise = seconds / predicted
        if not self.num_observed:
            self.num_observed = 1
            self._scale(surprise)
            return
        self.num_observed += 1
        self._learn_margin(surprise)
        surprise = min(max(surprise, 1.0 / MOST_SURPRISE), MOST_SURPRISE)
        squares = sum(term * term for term in terms)
        factor = RATE * (surprise - 1.0) * predicted / squares
        self._step *= 1.0 + factor * terms[0]
        self._decode *= 1.0 + factor * terms[1]
        self._decode_key *= 1.0 + factor * terms[2]
        self._prompt_token *= 1.0 + factor * terms[3]
        self._prompt_key *= 1.0 + factor * terms[4]

    def fitting_chunk(self, start: int, seconds: float) -> int:
        """Most tokens of a prompt, from position `start` on, that most likely add no more than `seconds` to a step.

        Before anything was observed it is 0: nothing is known to fit.
        """
        if not self.num_observed or seconds <= 0.0:
            return 0
        # n tokens cost token * n + key * (start * n + n * n / 2): solved for n.
        token = self._prompt_token + self._prompt_key * start
        room = seconds / self.margin
        root = sqrt(token * token + 2.0 * self._prompt_key * room)
        return int(2.0 * room / (token + root))

    def _scale(self, factor: float) -> None:
        """The first observation gives all coefficients their unit."""
        self._step *= factor
        self._decode *= factor
        self._decode_key *= factor
        self._prompt_token *= factor
        self._prompt_key *= factor

    def _learn_margin(self, surprise: float) -> None:
        """Move the margin so that `QUANTILE` of the surprises are below it."""
        above = surprise > self.margin
        step = QUANTILE if above else QUANTILE - 1.0
        margin = self.margin * (1.0 + QUANTILE_RATE * step)
        self.margin = min(max(margin, LEAST_MARGIN), MOST_MARGIN)
