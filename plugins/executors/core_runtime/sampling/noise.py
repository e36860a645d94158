"""Keyed noise: the same seed, output index and choice always give the same noise for every vocabulary entry.

Owns: the meaning of counter and key, and the map from random words to exponential noise. Never does: keep a state or
look at logits. Called by: `core_runtime.sampling.race`; drafters that want the sampler's own noise.

For vocabulary entry v: w = Philox4x32-10(key = seed; counter = (v >> 2, output index, choice, purpose))[v & 3],
x = (w + ½)·2⁻³², E = −log1p(−x). The functions below use only float32 +, −, × and bit operations, one rounding each,
so their results are equal on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core_runtime.sampling.philox import philox4x32

PURPOSE_SAMPLE: Final = 0
"""Purpose (fourth counter word) of the noise that chooses tokens; other uses have other numbers."""

PURPOSE_DRAFT: Final = 1
"""Purpose of the noise for drafts that are drawn apart from the tokens: see `core_runtime.sampling.drafts.acceptance`."""

PURPOSE_ACCEPT: Final = 2
"""Purpose of the noise that decides whether a draft is accepted."""

PURPOSE_RECOVER: Final = 3
"""Purpose of the noise that replaces a rejected draft."""

MAX_GUMBEL_RANGE: Final = 26.1
"""Largest minus smallest possible −ln E, rounded up: 33·ln 2 + ln(33·ln 2) = 26.004."""

Float32 = NDArray[np.float32]
Ids = NDArray[np.int64]
Words = NDArray[np.uint32]

_ONE = np.float32(1)
_HALF = np.float32(0.5)
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_LN2_HIGH = np.float32(22713 / 32768)  # 15 bits: its product with an exponent is exact
_LN2_LOW = np.float32(1.4286068203094172e-06)
# (ln(1 + f) - f + f²/2) / f³ on [√½ - 1, √2 - 1], rising powers; minimax fit, 6e-9 relative to ln(1 + f).
_TAIL: Final = tuple(
    np.float32(float.fromhex(c))
    for c in (
        "0x1.555554p-2",
        "-0x1.00022ap-2",
        "0x1.99a01ap-3",
        "-0x1.5471a6p-3",
        "0x1.22d7f6p-3",
        "-0x1.0d8974p-3",
        "0x1.056dc4p-3",
        "-0x1.38cdc2p-4",
    )
)


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """Identifies the noise of one position.

    seed: 64 bits.
    index: output index, counted from the original prompt.
    choice: index among the `n` choices of a request.
    purpose: use of the noise, `PURPOSE_SAMPLE` or another number.
    """

    seed: int
    index: int
    choice: int
    purpose: int = PURPOSE_SAMPLE


def words_of_all(key: NoiseKey, size: int) -> Words:
    """Return the random words of the vocabulary entries 0 … size - 1: uint32 [size]."""
    # One counter gives the words of four consecutive entries.
    groups = (size + 3) >> 2
    counter = np.empty((4, groups), dtype=np.uint64)
    counter[0] = np.arange(groups, dtype=np.uint64)
    counter[1] = key.index
    counter[2] = key.choice
    counter[3] = key.purpose
    words = philox4x32(counter, _seed_words([key]))
    return words.reshape(-1)[:size]


def words_of(keys: Sequence[NoiseKey], ids: Sequence[Ids]) -> list[Words]:
    """Return the random words of chosen vocabulary entries, for several positions in one pass.

    ids: int64 arrays, one per key. Returns one uint32 array for each, of the same length.
    """
    counts = [len(part) for part in ids]
    seeds = _seed_words(keys)
    indices = [key.index for key in keys]
    choices = [key.choice for key in keys]
    purposes = [key.purpose for key in keys]
    fixed = np.array([indices, choices, purposes], dtype=np.uint64)
    columns = np.repeat(np.concatenate((seeds, fixed)), counts, axis=1)
    words = words_at(columns, np.concatenate(ids))
    borders = np.cumsum(counts)[:-1]
    return np.split(words, borders)


def words_at(keys: NDArray[np.uint64], ids: Ids) -> Words:
    """Return the random word of each (key, vocabulary entry): uint32 [n].

    keys: uint64 [5, n], 32-bit words: seed (low, high), output index, choice, purpose.
    ids: int64 [n].
    """
    counter = np.empty((4, len(ids)), dtype=np.uint64)
    counter[0] = ids >> 2
    counter[1:] = keys[2:]
    words = philox4x32(counter, keys[:2])
    groups = np.arange(len(ids))
    picked: Words = words[groups, ids & 3]
    return picked


def natural_log(values: Float32) -> Float32:
    """Return ln of positive normal float32 values, [n]: relative error below 2⁻²², also near 1."""
    bits = values.view(np.int32)
    exponent = (bits - _SQRT_HALF_BITS) >> np.int32(23)
    mantissa = bits - (exponent << np.int32(23))
    fraction = mantissa.view(np.float32) - _ONE
    scale = exponent.astype(np.float32)
    tail = np.full_like(fraction, _TAIL[-1])
    for coefficient in _TAIL[-2::-1]:
        tail = tail * fraction + coefficient
    near_one = fraction * fraction * (fraction * tail - _HALF) + fraction
    low = scale * _LN2_LOW + near_one
    result: Float32 = scale * _LN2_HIGH + low
    return result


def exponential(words: Words) -> Float32:
    """Return E = −log1p(−x), exponentially distributed, in [2⁻³³, 22.9]; relative error below 2⁻²². words: uint32 [n].

    1 − x is rounded to u, and what the rounding lost is added back: −ln(1 − x) = −(ln u + c/u), c = (1 − u) − x.
    """
    x = _uniform(words)
    # ~w is 2³² − 1 − w, so this is 1 − x, rounded once.
    u = _uniform(~words)
    rounding = (_ONE - u) - x
    lost = np.where(u >= _HALF, rounding, np.float32(0)).astype(np.float32, copy=False)
    correction = lost + lost * x
    result: Float32 = -(natural_log(u) + correction)
    return result


def gumbel(words: Words) -> Float32:
    """Return −ln E for each word: Gumbel noise in [−3.14, 22.88], absolute error below 3e-6. words: uint32 [n]."""
    return -natural_log(exponential(words))


def _uniform(words: Words) -> Float32:
    """Return x = (w + ½)·2⁻³², rounded once to float32."""
    exact = (words.astype(np.float64) + 0.5) * 2.0**-32
    return exact.astype(np.float32)


def _seed_words(keys: Sequence[NoiseKey]) -> NDArray[np.uint64]:
    """Return the (low, high) 32-bit words of the seeds: uint64 [2, len(keys)]."""
    seeds = np.array([key.seed & 0xFFFFFFFFFFFFFFFF for key in keys], dtype=np.uint64)
    low = seeds & np.uint64(0xFFFFFFFF)
    high = seeds >> np.uint64(32)
    return np.stack([low, high])
