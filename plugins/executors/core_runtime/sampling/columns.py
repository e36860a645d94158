"""What each sequence of a batch asks of the sampler, as columns by slot.

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
"""Temperatures below are as good as this one; float32 holds it."""

NOT_ASKED: Final = -2
"""In the column of log-probabilities; -1 asks for the whole vocabulary."""

WORD: Final = 0xFFFFFFFF
INDEX: Final = 2
"""The word of a key that is the output index."""
PURPOSE: Final = 4
"""The word of a key that says what the noise is for."""


def temperature_of(params: SamplingParams) -> float:
    """The temperature as kernels take it; 0 when the largest logit wins."""
    return 0.0 if params.greedy else max(params.temperature, SMALLEST)


class SamplingColumns:
    """S slots. Written when a sequence enters, then constant: what changes with each token follows from its length.

    keys: int64 [S, 5], 32-bit words: seed (low, high), output index (0 here), choice, purpose.
    temperatures: float32 [S]; 0: the largest logit wins; 1 where a stage divides by the temperature.
    top_k: int64 [S]; 0: off.
    top_p: float64 [S]; 1: off.
    least: float32 [S], the smallest (logit - largest) / T that min-p leaves.
    min_tokens: int32 [S], the output index from which stop tokens may come.
    adjusts: bool [S], whether logits are changed at every output index.
    logprobs: int32 [S], most likely tokens to report, -1: all, NOT_ASKED.
    masked: bool [S], whether the sequence has a token mask.
    num_masked: how many have.
    states: the rare things, None where the slot is free.
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
        self.masked = np.zeros(num_slots, bool)
        self.num_masked = 0
        self.states: list[SequenceSampling | None] = [None] * num_slots

    def start(self, slot: int, state: SequenceSampling) -> None:
        """A sequence takes a slot."""
        request = state.request
        params = state.params
        low = request.seed & WORD
        high = request.seed >> 32 & WORD
        self.keys[slot] = low, high, 0, request.choice, PURPOSE_SAMPLE
        self.temperatures[slot] = 1.0 if state.late_processors else temperature_of(params)
        self.top_k[slot] = max(params.top_k, 0)
        self.top_p[slot] = params.top_p
        self.least[slot] = least_score(params.min_p)
        self.min_tokens[slot] = state.min_tokens
        self.adjusts[slot] = state.always_adjusts
        self.logprobs[slot] = NOT_ASKED if params.logprobs is None else params.logprobs
        self.states[slot] = state
        self._mark(slot, has_mask=state.mask is not None)

    def end(self, slot: int) -> None:
        """The sequence leaves its slot."""
        self.states[slot] = None
        self._mark(slot, has_mask=False)

    def forget_drawn(self, slot: int) -> None:
        """The drafts of a sequence are not the ones that were drawn: others took their place."""
        state = self.states[slot]
        if state is not None:
            state.drawn.clear()

    def _mark(self, slot: int, has_mask: bool) -> None:
        self.num_masked += int(has_mask) - int(self.masked[slot])
        self.masked[slot] = has_mask
