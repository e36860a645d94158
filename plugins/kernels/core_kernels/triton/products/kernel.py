"""Kernels of products with prepared weights: W @ x.T for a block of outputs and a block of rows.

Owns: what is read and written. Never does: add up (`sums.py` does), choose a tile, launch. Called by: `product.py`.

A program computes BN outputs of BT rows as W @ x.T, so that the matrix units' wider side runs along the outputs and few
rows waste little. The inputs are divided into equal segments. Each segment is summed block by block, and the segments
are added in order: by one program that sums all of them, or, where few rows would leave most of the chip idle, by the
last of the programs that sum one each. Products and sums of float32 become one instruction only where a function says
so: both ways then give the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_kernels.triton import portable
from core_kernels.triton.products.block import (
    join_segments,
    leave_segment,
    open_block,
    place_of_program,
    rows_of_tile,
    store_block,
)
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
    partial: tl.tensor,
    counters: tl.tensor,
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
    GATE: tl.constexpr,
    WHOLE: tl.constexpr,
    EARLY: tl.constexpr,
    BN: tl.constexpr,
    BT: tl.constexpr,
) -> None:
    """Compute one block of outputs for one block of rows; program (block, segment).

    DECODING, SCALES, GROUP: see `codes.py` and `sums.py`.
    x_scale: float32, a scale for each row of x, whose numbers are then bytes of e4m3; or absent.
    num_blocks: blocks of BT rows. segment_runs: runs per segment.
    SPLIT: one program for each segment. They leave their sums in `partial`, float32 [SEGMENTS, num_rows, num_outputs],
        and count in `counters`, int32 zeros, one for each block; the last one joins them.
    GATE: an `activation.Gate`; out has act(gate) * up, half of the outputs. None: no gate.
    pairs: int32 [num_blocks * BT] or absent: the row of `out` for each row of a block, -1: none; the row of x is that
        number divided by `divisor`. experts: int32, the expert of every `block_rows` entries of `pairs`, -1: nothing to
        do.
    """
    portable.begin(EARLY)
    row_block, first_column = place_of_program(num_outputs, num_blocks, BN)
    if GATE is not None:
        first_column = first_column // 2
    # 32 bits suffice for offsets within a tile; the tile's start needs 64.
    row, is_output = rows_of_tile(first_column, num_outputs, BN, GATE is not None)
    row = row[:, None]
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
    if SPLIT:
        inside = is_output[:, None] & is_row[None, :]
        first = partial + target[None, :] * num_outputs + (first_column + row)
        size = tl.cast(num_rows, tl.int64) * num_outputs
        counter = counters + tl.program_id(0)
        is_last = leave_segment(total, first + tl.program_id(1) * size, inside, counter, SEGMENTS)
        if not is_last:
            return
        total = join_segments(first, size, inside, counter, SEGMENTS)
    total = scaled(total, scale, row_scale, x_scale, row, source, SCALES)
    if bias is not None:
        total = total + portable.widen(tl.load(bias + first_column + row))
    if GATE is not None:
        total = open_block(total, GATE, out.dtype.element_ty)
        num_outputs = num_outputs // 2
    column = first_column + tl.arange(0, total.shape[0])
    inside = (column < num_outputs)[:, None] & is_row[None, :]
    store_block(total, out + target[None, :] * out_stride + column[:, None], inside, ACCUMULATE)
