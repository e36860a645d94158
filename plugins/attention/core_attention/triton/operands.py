"""The operands of an attention tile, and the processing of its scores.

Owns: loads of queries, keys and values, masks, and one step of the softmax. Never does: know sections, or store
anything.
Called by: `attend_kernel.py`.

LAYER is an `Attended`, BLOCKS a `BlockLayout`.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from core_attention.triton import cells, spans
from core_attention.triton.sums import LOG2E
from core_attention.triton.work import Rows
from core_kernels.triton import portable


class KeyTile(NamedTuple):
    """Keys that a program reads together: their locations, each [KEYS], and their key-value head.

    cache, scales: of the layer. block, offset: of each key. is_readable: whether the lane holds a key.
    """

    cache: tl.tensor
    scales: tl.tensor
    kv_head: tl.tensor
    block: tl.tensor
    offset: tl.tensor
    is_readable: tl.tensor


@triton.jit
def _queries(
    pointer: tl.tensor,
    rows: Rows,
    row_stride: tl.tensor,
    head_stride: tl.tensor,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    dtype: tl.constexpr,
) -> tl.tensor:
    """Load [ROWS, PADDED] elements of queries."""
    number = tl.arange(0, PADDED)
    place = rows.row.to(tl.int64) * row_stride + rows.head * head_stride
    inside = rows.is_live[:, None] & (number < SIZE)[None, :]
    loaded = tl.load(pointer + place[:, None] + number[None, :], mask=inside, other=0.0)
    if loaded.dtype == dtype:
        return loaded
    else:
        return portable.cast(portable.widen(loaded), dtype)


@triton.jit
def queries_of(
    q: tl.tensor,
    q_rest: tl.tensor,
    rows: Rows,
    q_row: tl.tensor,
    q_head: tl.tensor,
    rest_row: tl.tensor,
    rest_head: tl.tensor,
    LAYER: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Load queries in their two parts; with a single part, it is returned for both."""
    queries = _queries(q, rows, q_row, q_head, LAYER.size, LAYER.padded, LAYER.product)
    rest = queries
    if LAYER.rest > 0:
        rest = _queries(q_rest, rows, rest_row, rest_head, LAYER.rest, LAYER.rest_padded, LAYER.product)
    return queries, rest


@triton.jit
def _keys(
    tile: KeyTile,
    FIRST: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    LAYER: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> tl.tensor:
    """Load [PADDED, KEYS] elements of keys: SIZE elements from FIRST on."""
    place = tile.block * BLOCKS.block_stride + tile.kv_head * BLOCKS.k_head + tile.offset * BLOCKS.k_token
    number = tl.arange(0, PADDED)
    inside = tile.is_readable[None, :] & (number < SIZE)[:, None]
    codes = tl.load(tile.cache + place[None, :] + (FIRST + number)[:, None], mask=inside, other=0)
    return cells.decoded(codes, LAYER.product, BLOCKS, LAYER.is_native)


@triton.jit
def _values(tile: KeyTile, number: tl.tensor, LAYER: tl.constexpr, BLOCKS: tl.constexpr) -> tl.tensor:
    """Load [KEYS, VALUE_TILE] elements of values. number: the elements to load."""
    first = tile.block * BLOCKS.block_stride + BLOCKS.v_base
    place = first + tile.kv_head * BLOCKS.v_head + tile.offset * BLOCKS.v_token
    inside = tile.is_readable[:, None] & (number < LAYER.value_size)[None, :]
    codes = tl.load(tile.cache + place[:, None] + number[None, :], mask=inside, other=0)
    return cells.decoded(codes, LAYER.value_product, BLOCKS, LAYER.is_native)


@triton.jit
def scales_of(tile: KeyTile, BLOCKS: tl.constexpr) -> tl.tensor:
    """Return pointers [KEYS] to the scale of each key, if there are scales."""
    place = tile.block * BLOCKS.scale_stride + BLOCKS.scale_base + tile.kv_head * BLOCKS.block_size + tile.offset
    return tile.scales + place


@triton.jit
def scaled(numbers: tl.tensor, scales: tl.tensor, tile: KeyTile, BLOCKS: tl.constexpr) -> tl.tensor:
    """Multiply [ROWS, KEYS] by the scale of each key or value, if the cache has scales. scales: pointers [KEYS]."""
    if BLOCKS.is_scaled:
        own_scales = tl.load(scales, mask=tile.is_readable, other=0.0)
        numbers = numbers * own_scales[None, :]
    return numbers


@triton.jit
def scores_of(
    queries: tl.tensor, queries_rest: tl.tensor, tile: KeyTile, LAYER: tl.constexpr, BLOCKS: tl.constexpr
) -> tl.tensor:
    """Return the products of two-part queries and keys: [ROWS, KEYS]."""
    keys = _keys(tile, 0, LAYER.size, LAYER.padded, LAYER, BLOCKS)
    scores = portable.dot(queries, keys, tl.full([LAYER.rows, LAYER.keys], 0.0, tl.float32))
    if LAYER.rest > 0:
        keys_rest = _keys(tile, LAYER.size, LAYER.rest, LAYER.rest_padded, LAYER, BLOCKS)
        scores = portable.dot(queries_rest, keys_rest, scores)
    return scores


@triton.jit
def slopes_of(slopes: tl.tensor, rows: Rows, LAYER: tl.constexpr) -> tl.tensor:
    """Return the ALiBi slope of each row [ROWS], in base-2 logarithms per position; 0 without slopes."""
    slope = tl.full([LAYER.rows], 0.0, tl.float32)
    if LAYER.has_slopes:
        slope = tl.load(slopes + rows.head) * LOG2E
    return slope


@triton.jit
def masked(
    scores: tl.tensor, key: tl.tensor, rows: Rows, slope: tl.tensor, cap_scale: tl.tensor, LAYER: tl.constexpr
) -> tl.tensor:
    """Return scores [ROWS, KEYS] as base-2 logarithms, -inf where a row does not see a key."""
    if LAYER.has_cap:
        scores = portable.tanh(scores) * cap_scale
    if LAYER.has_slopes:
        distance = (key[None, :] - rows.position[:, None]).to(tl.float32)
        scores = tl.fma(distance, slope[:, None], scores)
    seen = key[None, :] <= rows.last_key[:, None]
    if LAYER.window > 0:
        seen = seen & (key[None, :] >= rows.first_key[:, None])
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def softened(
    scores: tl.tensor, maxima: tl.tensor, weights: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Perform one softmax step: return new maxima and weights, the tile's shares, and the factor by which earlier sums
    shrink.
    """
    common = tl.maximum(maxima, tl.max(scores, 1))
    shrink = spans.weight(maxima, common)
    shares = tl.exp2(scores - spans.finite(common)[:, None])
    weights = tl.fma(weights, shrink, tl.sum(shares, 1))
    return common, weights, shares, shrink


@triton.jit
def weighed(
    sums: tl.tensor,
    shrink: tl.tensor,
    shares: tl.tensor,
    tile: KeyTile,
    number: tl.tensor,
    LAYER: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> tl.tensor:
    """Shrink sums [ROWS, VALUE_TILE] and add a tile's values weighted by shares [ROWS, KEYS]. number: as in `_values`."""
    values = _values(tile, number, LAYER, BLOCKS)
    return portable.dot(portable.cast(shares, LAYER.value_product), values, sums * shrink[:, None])
