"""The operands of a tile of attention, and what becomes of its scores.

Owns: loads of queries, keys and values, masks, and one step of the softmax. Never does: know sections, or store anything.
Called by: `attend_kernel.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_plugins.attention.triton import cells, spans
from core_plugins.kernels.triton import portable


@triton.jit
def queries_of(
    pointer: tl.tensor,
    row: tl.tensor,
    head: tl.tensor,
    live: tl.tensor,
    row_stride: tl.tensor,
    head_stride: tl.tensor,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    dtype: tl.constexpr,
) -> tl.tensor:
    """[ROWS, PADDED] numbers of queries."""
    number = tl.arange(0, PADDED)
    place = row * row_stride + head * head_stride
    inside = live[:, None] & (number < SIZE)[None, :]
    loaded = tl.load(pointer + place[:, None] + number[None, :], mask=inside, other=0.0)
    if loaded.dtype == dtype:
        return loaded
    else:
        return portable.cast(portable.widen(loaded), dtype)


@triton.jit
def keys_of(
    cache: tl.tensor,
    place: tl.tensor,
    readable: tl.tensor,
    FIRST: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    dtype: tl.constexpr,
    ELEMENT: tl.constexpr,
    NATIVE: tl.constexpr,
) -> tl.tensor:
    """[PADDED, KEYS] numbers of keys, SIZE from the FIRST one on. place: of each key."""
    number = tl.arange(0, PADDED)
    inside = readable[None, :] & (number < SIZE)[:, None]
    codes = tl.load(cache + place[None, :] + (FIRST + number)[:, None], mask=inside, other=0)
    return cells.decoded(codes, dtype, ELEMENT, NATIVE)


@triton.jit
def values_of(
    cache: tl.tensor,
    place: tl.tensor,
    readable: tl.tensor,
    number: tl.tensor,
    VALUE: tl.constexpr,
    dtype: tl.constexpr,
    ELEMENT: tl.constexpr,
    NATIVE: tl.constexpr,
) -> tl.tensor:
    """[KEYS, VALUE_TILE] numbers of values. place: of each value. number: which numbers, VALUE in all."""
    inside = readable[:, None] & (number < VALUE)[None, :]
    codes = tl.load(cache + place[:, None] + number[None, :], mask=inside, other=0)
    return cells.decoded(codes, dtype, ELEMENT, NATIVE)


@triton.jit
def masked(
    scores: tl.tensor,
    key: tl.tensor,
    position: tl.tensor,
    own_first: tl.tensor,
    slope: tl.tensor,
    cap_scale: tl.tensor,
    HAS_CAP: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
) -> tl.tensor:
    """Scores [ROWS, KEYS] in powers of 2, -inf where a row does not see a key."""
    if HAS_CAP:
        scores = portable.tanh(scores) * cap_scale
    if HAS_SLOPES:
        distance = (key[None, :] - position[:, None]).to(tl.float32)
        scores = tl.fma(distance, slope[:, None], scores)
    seen = (key[None, :] <= position[:, None]) & (key[None, :] >= own_first[:, None])
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def softened(
    scores: tl.tensor, maxima: tl.tensor, weights: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """One step of the softmax: new maxima and weights, the tile's shares, and by what earlier sums shrink."""
    common = tl.maximum(maxima, tl.max(scores, 1))
    shrink = spans.weight(maxima, common)
    shares = tl.exp2(scores - spans.finite(common)[:, None])
    weights = tl.fma(weights, shrink, tl.sum(shares, 1))
    return common, weights, shares, shrink
