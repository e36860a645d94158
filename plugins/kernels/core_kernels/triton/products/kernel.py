"""Kernels of products with prepared weights: W @ x.T for a block of outputs and a block of rows.

Owns: what is read and written. Never does: add up (`sums.py` does), choose a tile, launch. Called by: `product.py`.

A program computes BN outputs of BT rows as W @ x.T, so that the matrix units' wider side runs along the outputs and few
rows waste little. The inputs are divided into equal segments. Each segment is summed block by block, and the segments
are added in order: by one program, or, where few rows would leave most of the chip idle, by a second kernel. Products
and sums of float32 become one instruction only where a function says so: both ways then give the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_kernels.triton import portable
from core_kernels.triton.products.block import place_of_program, store_block
from core_kernels.triton.products.sums import scaled, sum_of
from core_kernels.triton.products.tile import Weight

STEPS = (
    *("num_rows", "num_outputs", "num_inputs", "num_blocks", "block_rows"),
    *("x_stride", "out_stride", "segment_runs", "divisor"),
)
SIZES = ("value_stride", "high_stride", "scale_stride", "sub_stride", "super_size", "group_size", "zero")
VARYING = ("num_rows", "num_blocks", "block_rows", "segment_runs", "divisor")
UNALIGNED = ("scale_stride", "sub_stride", "super_size", "group_size", "zero")
"""Sizes that do not decide how wide memory is read. Kernels are specialized for the other sizes and strides: only with
multiples of 16 can the compiler read 16 bytes at a time, and it pipelines no read of 2 bytes. `tl.multiple_of` cannot say
this, since it has no effect on a kernel's own argument."""


@triton.jit
def _rows(
    pairs: tl.tensor,
    token: tl.tensor,
    first_token: tl.tensor,
    num_rows: tl.tensor,
    divisor: tl.tensor,
    BT: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return a block's rows of x [1, BT] (consecutive without `pairs`), its rows of `out`, and whether each is valid."""
    if pairs is not None:
        target = tl.load(pairs + token).to(tl.int64)
        is_row = target >= 0
        source = tl.maximum(target, 0) // divisor
    else:
        target = token.to(tl.int64)
        is_row = token < num_rows
        source = tl.minimum(tl.arange(0, BT), num_rows - 1 - first_token)
    return source[None, :], target, is_row


@triton.jit(do_not_specialize=VARYING + UNALIGNED)
def product(
    x: tl.tensor,
    x_scale: tl.tensor,
    out: tl.tensor,
    bias: tl.tensor,
    pairs: tl.tensor,
    experts: tl.tensor,
    values: tl.tensor,
    high: tl.tensor,
    scale: tl.tensor,
    sub_scale: tl.tensor,
    minimum: tl.tensor,
    sub_minimum: tl.tensor,
    zeros: tl.tensor,
    row_scale: tl.tensor,
    table: tl.tensor,
    num_rows: int,
    num_outputs: int,
    num_inputs: int,
    num_blocks: int,
    block_rows: int,
    x_stride: int,
    out_stride: int,
    segment_runs: int,
    divisor: int,
    value_stride: int,
    high_stride: int,
    scale_stride: int,
    sub_stride: int,
    super_size: int,
    group_size: int,
    zero: int,
    FORM: tl.constexpr,
    COMPUTE: tl.constexpr,
    DECODING: tl.constexpr,
    SCALES: tl.constexpr,
    GROUP: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SPLIT: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    WHOLE: tl.constexpr,
    BN: tl.constexpr,
    BT: tl.constexpr,
) -> None:
    """Compute one block of outputs for one block of rows; program (block, segment).

    DECODING, SCALES, GROUP: see `codes.py` and `sums.py`.
    x_scale: float32, a scale for each row of x, whose numbers are then bytes of e4m3; or absent.
    num_blocks: blocks of BT rows. segment_runs: runs per segment. SPLIT: out is float32 [SEGMENTS, num_rows,
        num_outputs], each segment's own sum.
    pairs: int32 [num_blocks * BT] or absent: the row of `out` for each row of a block, -1: none; the row of x is that
        number divided by `divisor`. experts: int32, the expert of every `block_rows` entries of `pairs`, -1: nothing to
        do.
    """
    row_block, first_column = place_of_program(num_outputs, num_blocks, BN)
    # 32 bits suffice for offsets within a tile; the tile's start needs 64.
    row = tl.minimum(tl.arange(0, BN), num_outputs - 1 - first_column)[:, None]
    first_row = first_column.to(tl.int64)
    first_token = row_block * BT
    token = first_token + tl.arange(0, BT)
    if pairs is not None:
        expert = tl.load(experts + first_token // block_rows)
        if expert < 0:
            return
        first_row += expert.to(tl.int64) * num_outputs
    else:
        x += first_token.to(tl.int64) * x_stride
        if x_scale is not None:
            x_scale += first_token
    source, target, is_row = _rows(pairs, token, first_token, num_rows, divisor, BT)
    values += first_row * value_stride
    if high is not None:
        high += first_row * high_stride
    if scale is not None:
        scale += first_row * scale_stride
    if sub_scale is not None:
        sub_scale += first_row * sub_stride
    if minimum is not None:
        minimum += first_row * scale_stride
    if sub_minimum is not None:
        sub_minimum += first_row * sub_stride
    if zeros is not None:
        zeros += first_row * scale_stride
    if row_scale is not None:
        row_scale += first_row
    weight = Weight(
        values, high, scale, sub_scale, minimum, sub_minimum, zeros, row_scale, table,
        value_stride, high_stride, scale_stride, sub_stride, super_size, group_size, zero,
    )  # fmt: skip
    total = sum_of(
        x, source, x_stride, row, num_inputs, segment_runs, weight,
        FORM, COMPUTE, DECODING, SCALES, GROUP, x_scale is not None, SEGMENTS, SPLIT, WHOLE, BN, BT,
    )  # fmt: skip
    column = first_column + tl.arange(0, BN)
    inside = (column < num_outputs)[:, None] & is_row[None, :]
    if SPLIT:
        target += tl.program_id(1).to(tl.int64) * num_rows
        tl.store(out + target[None, :] * num_outputs + column[:, None], total, mask=inside)
    else:
        total = scaled(total, scale, row_scale, x_scale, row, source, SCALES)
        place = out + target[None, :] * out_stride + column[:, None]
        store_block(total, place, bias, column, inside, num_outputs, ACCUMULATE)


@triton.jit(do_not_specialize=("num_rows",))
def join(
    partial: tl.tensor,
    scale: tl.tensor,
    row_scale: tl.tensor,
    x_scale: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    num_rows: int,
    num_outputs: int,
    out_stride: int,
    SCALES: tl.constexpr,
    SEGMENTS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Add the segments' sums in order: program (row, block of outputs). partial: float32 [SEGMENTS, rows, outputs].

    The scales and SCALES are those of `product`.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_outputs
    total = tl.zeros([BLOCK], tl.float32)
    for segment in range(SEGMENTS):
        place = partial + (segment * num_rows + row) * num_outputs + column
        total = total + tl.load(place, mask=inside, other=0.0)
    total = scaled(total, scale, row_scale, x_scale, tl.minimum(column, num_outputs - 1), row, SCALES)
    if bias is not None:
        total = total + portable.widen(tl.load(bias + column, mask=inside, other=0.0))
    place = out + row * out_stride + column
    if ACCUMULATE:
        total = total + portable.widen(tl.load(place, mask=inside, other=0.0))
    portable.store(place, total, inside)
