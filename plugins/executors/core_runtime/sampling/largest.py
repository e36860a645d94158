"""Selection of the k largest of many values, fast and exact.

Owns: `at_least_kth`. Never does: order or break ties. Called by: `core_runtime.sampling.filters`,
`core_runtime.sampling.logprobs`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from core_runtime.sampling.noise import Float32, Ids

BLOCKS: Final = 256


def at_least_kth(values: Float32, k: int) -> Ids:
    """Return the ascending positions of all values not below the k-th largest: k, or more on ties. values: float32 [n],
    no NaN.

    The k-th largest of the block maxima is a lower bound of the k-th largest value, so only few values remain to select from.
    """
    if k >= len(values):
        return np.arange(len(values))
    width = len(values) // BLOCKS
    if k <= BLOCKS and width > 1:
        blocks = values[: width * BLOCKS].reshape(BLOCKS, width)
        maxima = blocks.max(axis=1)
        pool = np.flatnonzero(values >= _kth(maxima, k))
        pooled = values[pool]
        return pool[pooled >= _kth(pooled, k)]
    return np.flatnonzero(values >= _kth(values, k))


def _kth(values: Float32, k: int) -> np.float32:
    """Return the k-th largest value."""
    place = len(values) - k
    limit: np.float32 = np.partition(values, place)[place]
    return limit
