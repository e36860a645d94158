"""The kernel that writes a step's keys and values (or latents and rotated keys) into their slots.

Owns: the two parts of a token's row in the cache. Never does: change a slot that is not the step's. Called by: `launch.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_plugins.attention.triton import cells
from core_plugins.kernels.triton import portable


@triton.jit
def heads_of(
    x: tl.tensor,
    head: tl.tensor,
    x_head: tl.tensor,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
) -> tl.tensor:
    """Some heads of one token, float32 [SIDE, PADDED]. x: at its first number. head: [SIDE]."""
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
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    HEAD: tl.constexpr,
    ELEMENT: tl.constexpr,
    SCALED: tl.constexpr,
    LARGEST: tl.constexpr,
) -> None:
    """Heads of one token. values: of `heads_of`. cache: at the token's first number. scale_place: of each, in `scales`."""
    number = tl.arange(0, PADDED)
    inside = (head < HEADS)[:, None] & (number < SIZE)[None, :]
    if SCALED:
        magnitude = tl.max(tl.abs(values), 1)
        own_scale = portable.div(magnitude, tl.full(magnitude.shape, LARGEST, tl.float32))
        tl.store(scales + scale_place, own_scale, mask=head < HEADS)
        divisor = tl.where(magnitude > 0, magnitude, 1.0)
        factor = portable.div(tl.full(magnitude.shape, LARGEST, tl.float32), divisor)
        values = tl.where((magnitude > 0)[:, None], values * factor[:, None], 0.0)
    elif ELEMENT != "plain":
        values = portable.div(values, tl.zeros_like(values) + scale)
    codes = cells.encoded(values, cache.dtype.element_ty, ELEMENT)
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
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    K_HEAD: tl.constexpr,
    K_TOKEN: tl.constexpr,
    V_BASE: tl.constexpr,
    V_HEAD: tl.constexpr,
    V_TOKEN: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    SCALE_BASE: tl.constexpr,
    SCALE_VALUES: tl.constexpr,
    ELEMENT: tl.constexpr,
    SCALED: tl.constexpr,
    LARGEST: tl.constexpr,
) -> None:
    """Some heads of one token into its slot. keys [SIDE, PADDED] and values [SIDE, VALUE_PADDED]: of `heads_of`."""
    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE
    scale_place = block * SCALE_STRIDE + SCALE_BASE + head * BLOCK_SIZE + offset
    place = cache + block * BLOCK_STRIDE
    k_place = place + offset * K_TOKEN
    v_place = place + V_BASE + offset * V_TOKEN
    v_scales = scale_place + SCALE_VALUES
    _put(keys, k_place, scales, head, scale_place, k_scale, HEADS, SIZE, PADDED, K_HEAD, ELEMENT, SCALED, LARGEST)
    _put(values, v_place, scales, head, v_scales, v_scale, HEADS, VALUE, VALUE_PADDED, V_HEAD, ELEMENT, SCALED, LARGEST)


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
    HEADS: tl.constexpr,
    SIDE: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    K_HEAD: tl.constexpr,
    K_TOKEN: tl.constexpr,
    V_BASE: tl.constexpr,
    V_HEAD: tl.constexpr,
    V_TOKEN: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    SCALE_BASE: tl.constexpr,
    SCALE_VALUES: tl.constexpr,
    ELEMENT: tl.constexpr,
    SCALED: tl.constexpr,
    LARGEST: tl.constexpr,
) -> None:
    """One token, SIDE of its heads: k [T, HEADS, SIZE] and v [T, HEADS, VALUE] at slots [T]; a negative one is skipped."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    head = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    put_token(
        heads_of(k + token * k_row, head, k_head, HEADS, SIZE, PADDED),
        heads_of(v + token * v_row, head, v_head, HEADS, VALUE, VALUE_PADDED),
        cache,
        scales,
        slot,
        head,
        k_scale,
        v_scale,
        HEADS,
        SIZE,
        PADDED,
        VALUE,
        VALUE_PADDED,
        BLOCK_SIZE,
        BLOCK_STRIDE,
        K_HEAD,
        K_TOKEN,
        V_BASE,
        V_HEAD,
        V_TOKEN,
        SCALE_STRIDE,
        SCALE_BASE,
        SCALE_VALUES,
        ELEMENT,
        SCALED,
        LARGEST,
    )
