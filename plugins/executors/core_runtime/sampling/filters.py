"""Min-p, top-k and top-p: the filters of candidates. They only mask; nothing is rescaled.

Owns: the three filters, in that order, each applied to the result of the previous one. Never does: sample.
Called by: `core_runtime.sampling.kernel`. Candidates with equal logits pass or fail together.

Probabilities are counted in integers, made with float32 +, −, × of one rounding each. So the result depends neither on the
machine nor on an order of summation, and is the same for a native kernel.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.api.sampling_params import SamplingParams
from core_runtime.sampling.largest import at_least_kth
from core_runtime.sampling.noise import Float32, Ids

LOWEST: Final = float(np.finfo(np.float32).min)
"""The smallest finite float32."""

_LOG2_E: Final = np.float32(1.44269504)
# 2^f on [-½, ½], descending powers down to 1; error 2 units in the last place.
_POWER: Final = (
    np.float32(1.32647244e-3),
    np.float32(9.67151324e-3),
    np.float32(5.55073376e-2),
    np.float32(2.40222421e-1),
    np.float32(6.93146978e-1),
    np.float32(1.0),
)


def survivors(z: Float32, params: SamplingParams) -> tuple[Ids, Float32]:
    """Return the ascending ids of candidates that pass, and their z. z: float32 [V], (logit − largest)/T, masked
    entries -inf.
    """
    return filtered(z, params.top_k, params.top_p, least_score(params.min_p))


def least_score(min_p: float) -> float:
    """Return the smallest z that passes min-p; if it is off, the smallest finite one."""
    return math.log(min_p) if min_p > 0.0 else LOWEST


def filtered(z: Float32, top_k: int, top_p: float, least: float) -> tuple[Ids, Float32]:
    """Filter as `survivors`, with filters as in a `RaceKernel`. least: the smallest z that passes min-p."""
    ids = np.flatnonzero(z >= np.float32(least))
    kept = z[ids]
    if 0 < top_k < len(kept):
        passed = at_least_kth(kept, top_k)
        ids = ids[passed]
        kept = kept[passed]
    if top_p < 1.0:
        limit = _top_p_limit(kept, top_p)
        passed = np.flatnonzero(kept >= limit)
        ids = ids[passed]
        kept = kept[passed]
    return ids, kept


def _top_p_limit(z: Float32, top_p: float) -> np.float32:
    """Return the z of the last candidate in the smallest set, most likely first, whose probability reaches `top_p`.

    All candidates below `tail` together weigh less than the probability to cut, so only the others are sorted.
    """
    total = int(weights(z).sum())
    target = top_p * total
    spare = (total - target) / len(z) * 2.0**-30
    tail = -20.8  # e^-20.8 < 2^-30, so the weight below is 0
    if spare > 1e-9:
        # A little lower than exact, so that no rounding can exclude a candidate of the set.
        tail = math.log(spare) - 1e-3
    rising = np.sort(z[z >= tail])
    falling = rising[::-1]
    reached = np.cumsum(weights(falling))
    place = int(np.searchsorted(reached, target))
    last = min(place, len(falling) - 1)
    limit: np.float32 = falling[last]
    return limit


def weights(z: Float32) -> NDArray[np.int64]:
    """Return e^z in multiples of 2^-30, rounded down, int64 [n]. z: float32 [n], at most 0."""
    x = np.maximum(z * _LOG2_E, np.float32(-64))
    whole = np.rint(x)
    fraction = x - whole
    power = np.full_like(fraction, _POWER[0])
    for coefficient in _POWER[1:]:
        power = power * fraction + coefficient
    exponent = whole.astype(np.int32) + 30
    scaled = np.ldexp(power, exponent)
    counted: NDArray[np.int64] = scaled.astype(np.int64)
    return counted
