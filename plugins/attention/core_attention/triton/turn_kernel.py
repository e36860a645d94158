"""The kernel that normalizes and rotates a step's queries and keys, and writes keys and values into their slots, in one
launch.

Owns: the norm and the rotation of some heads of a token. Never does: know the layout of a slot (`write_kernel.py`
does).
Called by: `launch.py`.

Its results equal those of the kernels `rms_norm_heads`, `rotary` and `write` in sequence: numbers are rounded to the
type of queries and keys where those kernels store them. On a GPU, products and sums of the rotation are rounded
separately.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_attention.triton.write_kernel import heads_of, put_token
from core_kernels.triton import portable


@triton.jit
def _rounded(x: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Round float32 x as a store to memory of a type would."""
    return portable.widen(portable.cast(x, dtype))


@triton.jit
def _normed(
    numbers: tl.tensor, length: tl.tensor, weight: tl.tensor, places: tl.tensor, inside: tl.tensor, dtype: tl.constexpr
) -> tl.tensor:
    """Normalize heads [SIDE, PADDED] by their root mean squares [SIDE], and multiply by the weights at places [SIDE,
    PADDED].
    """
    factor = portable.widen(tl.load(weight + places, mask=inside, other=0.0))
    divisor = tl.zeros_like(numbers) + length[:, None]
    return _rounded(portable.div(numbers, divisor) * factor, dtype)


@triton.jit
def _turned(
    x: tl.tensor,
    head: tl.tensor,
    x_head: tl.tensor,
    weight: tl.tensor,
    weight_head: tl.tensor,
    eps: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    HALF: tl.constexpr,
) -> tl.tensor:
    """Return some heads of one token after norm and rotation, float32 [SIDE, PADDED].

    weight: of the norm, or None. cos, sin: at the token's position. HALF: pairs (i, i + HALF) are rotated.
    """
    dtype: tl.constexpr = x.dtype.element_ty
    number = tl.arange(0, PADDED)
    is_first = number < HALF
    turns = number < 2 * HALF
    partner = tl.where(is_first, number + HALF, number - HALF)
    inside = (head < HEADS)[:, None] & (number < SIZE)[None, :]
    paired = inside & turns[None, :]
    own = heads_of(x, head, x_head, HEADS, SIZE, PADDED)
    other = portable.widen(tl.load(x + head[:, None] * x_head + partner[None, :], mask=paired, other=0.0))
    if weight is not None:
        squares = tl.sum(own * own, 1)
        mean_square = portable.div(squares, tl.full(squares.shape, SIZE, tl.float32))
        length = tl.sqrt_rn(mean_square + eps)
        first = head[:, None] * weight_head
        own = _normed(own, length, weight, first + number[None, :], inside, dtype)
        other = _normed(other, length, weight, first + partner[None, :], paired, dtype)
    pair = tl.where(is_first, number, number - HALF)
    c = tl.load(cos + pair, mask=turns, other=1.0)
    s = tl.load(sin + pair, mask=turns, other=0.0)
    across = tl.where(is_first, -s, s)
    turned = own * c[None, :] + other * across[None, :]
    return _rounded(tl.where(turns[None, :], turned, own), dtype)


@triton.jit
def _turn_queries(
    q: tl.tensor,
    head: tl.tensor,
    q_head: tl.tensor,
    weight: tl.tensor,
    weight_head: tl.tensor,
    eps: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    """Normalize and rotate some heads of one token's queries in place. q: at the token's first number. Other arguments
    as in `_turned`.
    """
    queries = _turned(q, head, q_head, weight, weight_head, eps, cos, sin, HEADS, SIZE, PADDED, HALF)
    number = tl.arange(0, PADDED)
    inside = (head < HEADS)[:, None] & (number < SIZE)[None, :]
    portable.finish_stores()  # each number is also another number's partner, read by another thread
    portable.store(q + head[:, None] * q_head + number[None, :], queries, inside)


@triton.jit
def turn_and_write(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    cache: tl.tensor,
    scales: tl.tensor,
    slots: tl.tensor,
    positions: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    q_weight: tl.tensor,
    k_weight: tl.tensor,
    q_row: tl.tensor,
    q_head: tl.tensor,
    k_row: tl.tensor,
    k_head: tl.tensor,
    v_row: tl.tensor,
    v_head: tl.tensor,
    q_weight_head: tl.tensor,
    k_weight_head: tl.tensor,
    eps: tl.tensor,
    k_scale: tl.tensor,
    v_scale: tl.tensor,
    Q_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    SIDE: tl.constexpr,
    PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Process one token: SIDE heads of k and v, or SIDE heads of q, whose programs follow those of k.

    q [T, Q_HEADS, size] is rotated in place; k [T, heads, size] and v [T, heads, value] are written to slots [T] and
    are not changed; a negative slot is skipped. cos, sin: [positions, HALF]. q_weight, k_weight: of norms, or None. The
    other constants are those of `write`.
    """
    KEY_LANES: tl.constexpr = (BLOCKS.heads + SIDE - 1) // SIDE
    token = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1)
    angle = tl.load(positions + token) * HALF
    if lane >= KEY_LANES:
        head = (lane - KEY_LANES) * SIDE + tl.arange(0, SIDE)
        place = q + token * q_row
        c = cos + angle
        s = sin + angle
        _turn_queries(place, head, q_head, q_weight, q_weight_head, eps, c, s, Q_HEADS, BLOCKS.size, PADDED, HALF)
    else:
        slot = tl.load(slots + token)
        if slot >= 0:
            head = lane * SIDE + tl.arange(0, SIDE)
            place = k + token * k_row
            c = cos + angle
            s = sin + angle
            keys = _turned(
                place, head, k_head, k_weight, k_weight_head, eps, c, s, BLOCKS.heads, BLOCKS.size, PADDED, HALF
            )
            values = heads_of(v + token * v_row, head, v_head, BLOCKS.heads, BLOCKS.value_size, VALUE_PADDED)
            put_token(keys, values, cache, scales, slot, head, k_scale, v_scale, PADDED, VALUE_PADDED, BLOCKS)
