"""Tiles of a prepared weight as numbers, in registers: the one place that reads every format.

Owns: those functions of Triton. Never does: multiply. Called by: the products, the embedding.

Inputs lie in blocks of WIDTH, all of which share their scales. A byte of `values` holds the integers of as many blocks as
have room (FIELDS), so that a tile of bytes is read once and gives FIELDS tiles of numbers whose inputs lie together.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_plugins.kernels.triton import portable


@triton.jit
def from_row(place: tl.tensor, row: tl.tensor, stride: tl.tensor) -> tl.tensor:
    """Where a row of a tensor begins; of one that is absent, nothing."""
    return None if place is None else place + row * stride


@triton.jit
def numbers(
    raw: tl.tensor,
    field: tl.constexpr,
    block: tl.tensor,
    row: tl.tensor,
    high: tl.tensor,
    table: tl.tensor,
    high_stride: tl.tensor,
    CODE: tl.constexpr,
    LOW_BITS: tl.constexpr,
    HIGH_BITS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """What the stored codes of a block stand for, before zero points and scales: float32 [rows, WIDTH].

    raw: the bytes of the block's run. block: its number. row: [rows, 1].
    """
    if CODE == "e4m3":
        result = portable.decode_e4m3(raw)
    elif CODE == "e5m2":
        result = portable.decode_e5m2(raw)
    elif CODE == "int8":
        result = raw.to(tl.int8, bitcast=True).to(tl.float32)
    else:
        code = raw.to(tl.int32)
        if LOW_BITS < 8:
            code = (code >> (field * LOW_BITS)) & ((1 << LOW_BITS) - 1)
        if HIGH_BITS > 0:
            fields: tl.constexpr = 8 // HIGH_BITS
            at = (block // fields) * WIDTH + tl.arange(0, WIDTH)[None, :]
            more = tl.load(high + row * high_stride + at).to(tl.int32)
            more = (more >> ((block % fields) * HIGH_BITS)) & ((1 << HIGH_BITS) - 1)
            code = code | (more << LOW_BITS)
        if CODE == "table":
            result = tl.load(table + code)
        elif CODE == "e2m1":
            half = ((code & 8) << 12) | ((code & 7) << 9)  # float16 with an exponent that is 14 too small
            result = half.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0
        else:
            result = code.to(tl.float32)
    return result


@triton.jit
def wide_scale(place: tl.tensor, SCALE: tl.constexpr) -> tl.tensor:
    """Scales as float32. SCALE: `e8m0`, `e4m3`, or `plain` for a float type."""
    stored = tl.load(place)
    if SCALE == "e8m0":
        bits = tl.where(stored == 0, 0x400000, stored.to(tl.int32) << 23)
        result = bits.to(tl.float32, bitcast=True)
    elif SCALE == "e4m3":
        result = portable.decode_e4m3(stored)
    else:
        result = portable.widen(stored)
    return result


@triton.jit
def weight_tile(
    raw: tl.tensor,
    field: tl.constexpr,
    block: tl.tensor,
    row: tl.tensor,
    high: tl.tensor,
    scale: tl.tensor,
    sub_scale: tl.tensor,
    minimum: tl.tensor,
    sub_minimum: tl.tensor,
    zeros: tl.tensor,
    row_scale: tl.tensor,
    table: tl.tensor,
    high_stride: tl.tensor,
    scale_stride: tl.tensor,
    sub_stride: tl.tensor,
    super_size: tl.tensor,
    group_size: tl.tensor,
    zero: tl.tensor,
    CODE: tl.constexpr,
    LOW_BITS: tl.constexpr,
    HIGH_BITS: tl.constexpr,
    SCALE: tl.constexpr,
    SUB: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """W of some rows and the inputs of one block: float32 [rows, WIDTH]. See `packed.Form` for the constants."""
    result = numbers(raw, field, block, row, high, table, high_stride, CODE, LOW_BITS, HIGH_BITS, WIDTH)
    first = block * WIDTH
    upper = row * scale_stride + tl.minimum(first // super_size, scale_stride - 1)
    if CODE == "int":
        if zeros is not None:
            result = result - tl.load(zeros + upper).to(tl.float32)
        else:
            result = result - zero.to(tl.float32)
    factor = wide_scale(scale + upper, SCALE)
    if SUB != "none":
        lower = row * sub_stride + tl.minimum(first // group_size, sub_stride - 1)
        sub = tl.load(sub_scale + lower).to(tl.int32)
        if SUB == "nibbles":
            factor = factor * (sub & 15).to(tl.float32)
        else:
            factor = factor * sub.to(tl.float32)
    result = result * factor
    if minimum is not None:
        shift = portable.widen(tl.load(minimum + upper))
        if SUB == "nibbles":
            shift = shift * (sub >> 4).to(tl.float32)
        elif sub_minimum is not None:
            shift = shift * tl.load(sub_minimum + lower).to(tl.float32)
        result = result + shift
    if row_scale is not None:
        result = result * tl.load(row_scale + row)
    return result
