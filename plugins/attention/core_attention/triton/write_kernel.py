"""The kernel that writes a step's keys and values (or latents and rotated keys) into their slots.

Owns: the two parts of a token's row in the cache. Never does: write a slot outside the step. Called by: `launch.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_attention.triton import cells
from core_kernels.triton import portable


@triton.jit
def heads_of(
    x: tl.tensor,
    head: tl.tensor,
    x_head: tl.tensor,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
) -> tl.tensor:
    """Load some heads of one token, float32 [SIDE, PADDED]. x: at the token's first number. head: [SIDE]."""
    number = tl.arange(0, PADDED)
    inside = (head < HEADS)[:, None] & (number < SIZE)[None, :]
    loaded = tl.load(x + head[:, None] * x_head + number[None, :], mask=inside, other=0.0)
    return portable.widen(loaded)


@triton.jit
def _put(
    values: tl.tensor,
    cache: tl.tensor,
    scales: tl.tensor,
    head: tl.tensor,
    scale_place: tl.tensor,
    scale: tl.tensor,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Store heads of one token. values: from `heads_of`. cache: at the token's first number. scale_place: index of each
    head in `scales`.
    """
    number = tl.arange(0, PADDED)
    inside = (head < BLOCKS.heads)[:, None] & (number < SIZE)[None, :]
    if BLOCKS.is_scaled:
        magnitude = tl.max(tl.abs(values), 1)
        largest = tl.full(magnitude.shape, BLOCKS.largest, tl.float32)
        own_scale = portable.div(magnitude, largest)
        tl.store(scales + scale_place, own_scale, mask=head < BLOCKS.heads)
        divisor = tl.where(magnitude > 0, magnitude, 1.0)
        factor = portable.div(largest, divisor)
        values = tl.where((magnitude > 0)[:, None], values * factor[:, None], 0.0)
    elif BLOCKS.element != "plain":
        values = portable.div(values, tl.zeros_like(values) + scale)
    codes = cells.encoded(values, cache.dtype.element_ty, BLOCKS)
    tl.store(cache + head[:, None] * HEAD + number[None, :], codes, mask=inside)


@triton.jit
def put_token(
    keys: tl.tensor,
    values: tl.tensor,
    cache: tl.tensor,
    scales: tl.tensor,
    slot: tl.tensor,
    head: tl.tensor,
    k_scale: tl.tensor,
    v_scale: tl.tensor,
    PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Store some heads of one token into its slot. keys [SIDE, PADDED] and values [SIDE, VALUE_PADDED]: from
    `heads_of`.
    """
    block = slot // BLOCKS.block_size
    offset = slot % BLOCKS.block_size
    k_scales = block * BLOCKS.scale_stride + BLOCKS.scale_base + head * BLOCKS.block_size + offset
    v_scales = k_scales + BLOCKS.scale_values
    place = cache + block * BLOCKS.block_stride
    k_place = place + offset * BLOCKS.k_token
    v_place = place + BLOCKS.v_base + offset * BLOCKS.v_token
    _put(keys, k_place, scales, head, k_scales, k_scale, BLOCKS.size, PADDED, BLOCKS.k_head, BLOCKS)
    _put(values, v_place, scales, head, v_scales, v_scale, BLOCKS.value_size, VALUE_PADDED, BLOCKS.v_head, BLOCKS)


@triton.jit
def write(
    k: tl.tensor,
    v: tl.tensor,
    cache: tl.tensor,
    scales: tl.tensor,
    slots: tl.tensor,
    k_row: tl.tensor,
    k_head: tl.tensor,
    v_row: tl.tensor,
    v_head: tl.tensor,
    k_scale: tl.tensor,
    v_scale: tl.tensor,
    SIDE: tl.constexpr,
    PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Write SIDE heads of one token: k [T, heads, size] and v [T, heads, value] at slots [T]; a negative slot is
    skipped.

    PADDED, VALUE_PADDED: size and value rounded up to powers of 2. BLOCKS: a `BlockLayout`.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    head = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    keys = heads_of(k + token * k_row, head, k_head, BLOCKS.heads, BLOCKS.size, PADDED)
    values = heads_of(v + token * v_row, head, v_head, BLOCKS.heads, BLOCKS.value_size, VALUE_PADDED)
    put_token(keys, values, cache, scales, slot, head, k_scale, v_scale, PADDED, VALUE_PADDED, BLOCKS)
