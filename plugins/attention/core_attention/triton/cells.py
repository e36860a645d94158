"""Cache elements as kernels read and write them.

Owns: the location of a token's key, and the conversion of each KV type. Never does: attend. Called by: the kernels.

BLOCKS is a `BlockLayout`, whose element is one of these names: `plain` (bfloat16, float16, float32), `e4m3` and `e5m2`
(bytes), `int8`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_kernels.triton import portable

LARGEST_HALF = tl.constexpr(65504.0)
ROUNDING = tl.constexpr(12582912.0)
"""1.5 · 2^23: adding it to a small float32 and subtracting it again rounds to an integer, ties to even."""


@triton.jit
def decoded(codes: tl.tensor, dtype: tl.constexpr, BLOCKS: tl.constexpr, NATIVE: tl.constexpr) -> tl.tensor:
    """Convert cache elements to the type of the products, without loss. NATIVE: the chip has instructions for 8-bit
    floats.
    """
    if BLOCKS.element == "e4m3":
        if NATIVE:
            return codes.to(tl.float8e4nv, bitcast=True).to(dtype)
        else:
            return portable.cast(portable.decode_e4m3(codes), dtype)
    elif BLOCKS.element == "e5m2":
        if NATIVE:
            return codes.to(tl.float8e5, bitcast=True).to(dtype)
        else:
            return portable.cast(portable.decode_e5m2(codes), dtype)
    elif codes.dtype == dtype:
        return codes
    else:
        return portable.cast(portable.widen(codes), dtype)


@triton.jit
def encoded(x: tl.tensor, dtype: tl.constexpr, BLOCKS: tl.constexpr) -> tl.tensor:
    """Convert float32 x to cache elements, clamped to the type's largest number. dtype: of the cache."""
    if BLOCKS.element == "e4m3":
        return portable.encode_e4m3(x)
    elif BLOCKS.element == "e5m2":
        return portable.encode_e5m2(x)
    elif BLOCKS.element == "int8":
        whole = (x + ROUNDING) - ROUNDING
        inside = tl.minimum(tl.maximum(whole, -127.0), 127.0)
        return inside.to(tl.int8)
    elif dtype == tl.float16:
        inside = tl.where(x > LARGEST_HALF, LARGEST_HALF, x)
        inside = tl.where(x < -LARGEST_HALF, -LARGEST_HALF, inside)
        return portable.cast(inside, dtype)
    else:
        return portable.cast(x, dtype)


@triton.jit
def place_of(
    key: tl.tensor,
    readable: tl.tensor,
    table: tl.tensor,
    tail: tl.tensor,
    first_tail: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    HAS_TAILS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the block (int64) and offset of keys.

    table, tail: rows of the sequence in the block table and in `BatchView.tails`.
    first_tail: position of the first key in `tail`.
    """
    block = tl.load(table + key // BLOCK_SIZE, mask=readable, other=0)
    offset = key % BLOCK_SIZE
    if HAS_TAILS:
        nth = key - first_tail
        slot = tl.load(tail + nth, mask=readable & (nth >= 0), other=-1)
        block = tl.where(slot >= 0, slot // BLOCK_SIZE, block)
        offset = tl.where(slot >= 0, slot % BLOCK_SIZE, offset)
    return block.to(tl.int64), offset
