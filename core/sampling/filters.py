"""Min-p, top-k and top-p: which candidates stay in the race. They only mask; nothing is rescaled.

Owns: the three filters, in that order, each working on what the one before left. Never does: sample.
Called by: `core.sampling.sampler`. Candidates with equal logits stay or go together.
"""

from __future__ import annotations

import math

import numpy as np

from core.api.sampling_params import SamplingParams
from core.sampling.largest import at_least_kth
from core.sampling.noise import Float32, Ids


def survivors(z: Float32, params: SamplingParams) -> tuple[Ids, Float32]:
    """(rising ids, their z) of the candidates that pass. z: float32 [V], (logit − largest)/T, masked entries -inf."""
    floor = np.float32(math.log(params.min_p)) if params.min_p > 0.0 else np.finfo(np.float32).min
    ids = np.flatnonzero(z >= floor)
    kept = z[ids]
    if 0 < params.top_k < len(kept):
        passed = at_least_kth(kept, params.top_k)
        ids, kept = ids[passed], kept[passed]
    if params.top_p < 1.0:
        passed = np.flatnonzero(kept >= _top_p_limit(kept, params.top_p))
        ids, kept = ids[passed], kept[passed]
    return ids, kept


def _top_p_limit(z: Float32, top_p: float) -> np.float32:
    """The z of the last candidate of the smallest set, most likely first, whose probability reaches `top_p`.

    All candidates below `tail` together weigh less than what may be cut, so only the others are sorted.
    """
    total = float(np.exp(z).sum(dtype=np.float64))
    tail = math.log((1.0 - top_p) * total / len(z)) - 1e-3
    falling = np.sort(z[z >= tail])[::-1]
    weights = np.cumsum(np.exp(falling), dtype=np.float64)
    last = int(np.searchsorted(weights, top_p * total))
    limit: np.float32 = falling[min(last, len(falling) - 1)]
    return limit
