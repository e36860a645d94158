"""Sampling parameters of a batch's sequences, as columns by slot.

Owns: the columns. Never does: look at logits or count tokens (the persistent batch knows lengths).
Called by: the persistent batch (writes), `core_runtime.sampling.rows` (reads).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from core.api.sampling_params import SamplingParams
from core_runtime.sampling.filters import LOWEST, least_score
from core_runtime.sampling.noise import PURPOSE_SAMPLE
from core_runtime.sampling.state import SequenceSampling

SMALLEST: Final = 1e-37
"""Minimum temperature above 0: lower ones give the same tokens, and float32 can represent it."""

NOT_ASKED: Final = -2
"""Value in the column of logprobs if none are requested; -1 requests the whole vocabulary."""

WORD: Final = 0xFFFFFFFF
INDEX: Final = 2
"""Index of the key word with the output index."""
PURPOSE: Final = 4
"""Index of the key word with the purpose of the noise."""


def temperature_of(params: SamplingParams) -> float:
    """Return the temperature for kernels; 0: the largest logit wins."""
    return 0.0 if params.greedy else max(params.temperature, SMALLEST)


class SamplingColumns:
    """Columns of S slots, constant while a sequence runs; values that change with each token follow from its length.

    keys: int64 [S, 5], 32-bit words: seed (low, high), output index (0 here), choice, purpose.
    temperatures: float32 [S]; 0: the largest logit wins; 1 where a stage divides by the temperature.
    top_k: int64 [S]; 0: off.
    top_p: float64 [S]; 1: off.
    least: float32 [S], the smallest (logit - largest) / T that passes min-p.
    min_tokens: int32 [S], the output index from which stop tokens are allowed.
    adjusts: bool [S], whether logits are changed at every output index.
    logprobs: int32 [S], number of most likely tokens to report, -1: all, NOT_ASKED: none.
    lists: bool [S], whether log-probabilities of given tokens are reported.
    masked: bool [S], whether the sequence has a token mask.
    num_masked: number of sequences with a token mask.
    states: rarely used parameters, None for a free slot.
    """

    def __init__(self, num_slots: int) -> None:
        self.keys = np.zeros((num_slots, 5), np.int64)
        self.temperatures = np.zeros(num_slots, np.float32)
        self.top_k = np.zeros(num_slots, np.int64)
        self.top_p = np.ones(num_slots, np.float64)
        self.least = np.full(num_slots, LOWEST, np.float32)
        self.min_tokens = np.zeros(num_slots, np.int32)
        self.adjusts = np.zeros(num_slots, bool)
        self.logprobs = np.full(num_slots, NOT_ASKED, np.int32)
        self.lists = np.zeros(num_slots, bool)
        self.masked = np.zeros(num_slots, bool)
        self.num_masked = 0
        self.states: list[SequenceSampling | None] = [None] * num_slots

    def start(self, slot: int, state: SequenceSampling) -> None:
        """Write the parameters of a sequence into its slot."""
        request = state.request
        params = state.params
        low = request.seed & WORD
        high = request.seed >> 32 & WORD
        self.keys[slot] = low, high, 0, request.choice, PURPOSE_SAMPLE
        # With late processors the stages divide by the temperature, so the race must not divide again.
        self.temperatures[slot] = 1.0 if state.late_processors else temperature_of(params)
        self.top_k[slot] = max(params.top_k, 0)
        self.top_p[slot] = params.top_p
        self.least[slot] = least_score(params.min_p)
        self.min_tokens[slot] = state.min_tokens
        self.adjusts[slot] = state.always_adjusts
        self.logprobs[slot] = NOT_ASKED if params.logprobs is None else params.logprobs
        self.lists[slot] = bool(state.listed)
        self.states[slot] = state
        self._mark(slot, has_mask=state.mask is not None)

    def end(self, slot: int) -> None:
        """Free the slot of a sequence that leaves."""
        self.states[slot] = None
        self._mark(slot, has_mask=False)

    def forget_drawn(self, slot: int) -> None:
        """Drop the distributions of a sequence's drafts, because other drafts replaced them."""
        state = self.states[slot]
        if state is not None:
            state.drawn.clear()

    def _mark(self, slot: int, has_mask: bool) -> None:
        # Counted, so that a step without any mask need not search for them.
        self.num_masked += int(has_mask) - int(self.masked[slot])
        self.masked[slot] = has_mask
