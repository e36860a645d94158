"""Decoding of tiles of a prepared weight in registers, with their scales: the only code that reads every format.

Owns: these Triton functions, and the passing of a weight to them. Never does: multiply.
Called by: the products (where scales cannot multiply sums), the embedding.

FORM is a `packed.Form`. Inputs are stored in blocks of its width, and each block shares its scales. A byte of `stored`
holds the integers of several blocks (fields), so that a tile of bytes is read once and yields several tiles of
neighbouring inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from core_kernels.triton import portable
from core_kernels.triton.products.codes import portable_number


class Weight(NamedTuple):
    """A weight's tensors (None for absent ones) and sizes: `packed.Packed` as seen by a kernel."""

    stored: tl.tensor
    high: tl.tensor | None
    scale: tl.tensor | None
    sub_scale: tl.tensor | None
    minimum: tl.tensor | None
    sub_minimum: tl.tensor | None
    zeros: tl.tensor | None
    row_scale: tl.tensor | None
    table: tl.tensor | None
    value_stride: tl.tensor
    high_stride: tl.tensor
    scale_stride: tl.tensor
    sub_stride: tl.tensor
    super_size: tl.tensor
    group_size: tl.tensor
    zero: tl.tensor


@triton.jit
def stored_run(
    weight: Weight, row: tl.tensor, run: tl.tensor, num_inputs: tl.tensor, FORM: tl.constexpr, WHOLE: tl.constexpr
) -> tl.tensor:
    """Load the stored bytes of a run of blocks: [rows, WIDTH]. WHOLE: runs fill the inputs."""
    at = run * FORM.width + tl.arange(0, FORM.width)[None, :]
    if FORM.code == "dense" and not WHOLE:
        raw = tl.load(weight.stored + row * weight.value_stride + at, mask=at < num_inputs, other=0.0)
    else:
        raw = tl.load(weight.stored + row * weight.value_stride + at)
    return raw


@triton.jit
def numbers(
    raw: tl.tensor, field: tl.constexpr, block: tl.tensor, row: tl.tensor, weight: Weight, FORM: tl.constexpr
) -> tl.tensor:
    """Decode a block's stored codes, before zero points and scales: float32 [rows, WIDTH].

    raw: the bytes of the block's run. block: its number. row: [rows, 1].
    """
    if FORM.code == "table":
        result = tl.load(weight.table + _code(raw, field, block, row, weight, FORM))
    elif FORM.high_bits > 0:
        result = _code(raw, field, block, row, weight, FORM).to(tl.float32)
    else:
        result = portable_number(raw, field, FORM)
    return result


@triton.jit
def _code(
    raw: tl.tensor, field: tl.constexpr, block: tl.tensor, row: tl.tensor, weight: Weight, FORM: tl.constexpr
) -> tl.tensor:
    """Return the integers of a block: int32 [rows, WIDTH]."""
    code = raw.to(tl.int32)
    if FORM.low_bits < 8:
        code = (code >> (field * FORM.low_bits)) & ((1 << FORM.low_bits) - 1)
    if FORM.high_bits > 0:
        fields: tl.constexpr = 8 // FORM.high_bits
        at = (block // fields) * FORM.width + tl.arange(0, FORM.width)[None, :]
        more = tl.load(weight.high + row * weight.high_stride + at).to(tl.int32)
        more = (more >> ((block % fields) * FORM.high_bits)) & ((1 << FORM.high_bits) - 1)
        code = code | (more << FORM.low_bits)
    return code


@triton.jit
def wide_scale(stored: tl.tensor, FORM: tl.constexpr) -> tl.tensor:
    """Return stored scales as float32."""
    if FORM.scale == "e8m0":
        bits = tl.where(stored == 0, 0x400000, stored.to(tl.int32) << 23)
        result = bits.to(tl.float32, bitcast=True)
    elif FORM.scale == "e4m3":
        result = portable.decode_e4m3(stored)
    else:
        result = portable.widen(stored)
    return result


@triton.jit
def place_of_scale(weight: Weight, row: tl.tensor, block: tl.tensor, size: tl.tensor, FORM: tl.constexpr) -> tl.tensor:
    """Return where the scales, zero points and minima of a block lie: [rows, 1]. size: inputs that share them."""
    group = block * FORM.width // size
    return row * weight.scale_stride + tl.minimum(group, weight.scale_stride - 1)


@triton.jit
def weight_tile(
    raw: tl.tensor, field: tl.constexpr, block: tl.tensor, row: tl.tensor, weight: Weight, FORM: tl.constexpr
) -> tl.tensor:
    """Return W for some rows and the inputs of one block: float32 [rows, WIDTH]."""
    result = numbers(raw, field, block, row, weight, FORM)
    first = block * FORM.width
    upper = place_of_scale(weight, row, block, weight.super_size, FORM)
    if FORM.code == "int":
        if weight.zeros is not None:
            result = result - tl.load(weight.zeros + upper).to(tl.float32)
        else:
            result = result - weight.zero.to(tl.float32)
    factor = wide_scale(tl.load(weight.scale + upper), FORM)
    if FORM.sub != "none":
        lower = row * weight.sub_stride + tl.minimum(first // weight.group_size, weight.sub_stride - 1)
        sub = tl.load(weight.sub_scale + lower).to(tl.int32)
        if FORM.sub == "nibbles":
            factor = factor * (sub & 15).to(tl.float32)
        else:
            factor = factor * sub.to(tl.float32)
    if weight.minimum is None:
        result = result * factor
    else:
        shift = portable.widen(tl.load(weight.minimum + upper))
        if FORM.sub == "nibbles":
            shift = shift * (sub >> 4).to(tl.float32)
        elif weight.sub_minimum is not None:
            shift = shift * tl.load(weight.sub_minimum + lower).to(tl.float32)
        result = tl.fma(result, tl.broadcast_to(factor, result.shape), tl.broadcast_to(shift, result.shape))
    if weight.row_scale is not None:
        result = result * tl.load(weight.row_scale + row)
    return result
