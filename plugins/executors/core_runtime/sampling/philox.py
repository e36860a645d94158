"""Philox4x32-10, the counter-based generator behind the keyed noise.

Owns: the generator, in exact 32-bit arithmetic on numpy arrays. Never does: know what counter and key mean
(`core_runtime.sampling.noise` does). Called by: `core_runtime.sampling.noise`.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

ROUNDS: Final = 10
MULTIPLIERS: Final = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
WEYL: Final = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
LOW: Final = np.uint64(0xFFFFFFFF)
HIGH_SHIFT: Final = np.uint64(32)


def philox4x32(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Return the random words of n counters.

    counter: uint64 [4, n], key: uint64 [2, n] or [2, 1]; every value below 2³². Returns uint32 [n, 4].
    Words 0 and 2 of the counter are multiplied in a round, words 1 and 3 are mixed in: both pairs go as one array.
    """
    factors = counter[0::2].copy()
    mixed = counter[1::2]
    key = key.copy()
    products = (np.empty_like(factors), np.empty_like(factors))
    high = np.empty_like(factors)
    for turn in range(ROUNDS):
        product = products[turn & 1]
        np.multiply(factors, MULTIPLIERS, out=product)
        np.right_shift(product, HIGH_SHIFT, out=high)
        np.bitwise_and(product, LOW, out=product)
        np.bitwise_xor(high[::-1], mixed, out=factors)
        np.bitwise_xor(factors, key, out=factors)
        mixed = product[::-1]
        key = (key + WEYL) & LOW
    count = factors.shape[1]
    words = np.empty((count, 4), dtype=np.uint32)
    words[:, 0::2] = factors.T
    words[:, 1::2] = mixed.T
    return words
