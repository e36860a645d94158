"""Kernels of products with prepared weights: W @ x.T for a block of outputs and a block of rows.

Owns: these Triton functions, and the order of their sums. Never does: choose a tile, launch. Called by: `product.py`.

A program computes BN outputs of BT rows as W @ x.T, so that the matrix units' wider side runs along the outputs and few
rows waste little. The inputs are divided into equal segments. Each segment is summed block by block, and the segments
are added in order: by one program that sums all of them, or, where few rows would leave most of the chip idle, by the
last of the programs that sum one each.
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
from core_kernels.triton.products.tile import Weight, stored_run, weight_tile

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
def _weights(
    raw: tl.tensor,
    field: tl.constexpr,
    block: tl.tensor,
    row: tl.tensor,
    weight: Weight,
    FORM: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> tl.tensor:
    """Return W for some rows and the inputs of one block, in the product's type: [rows, width]."""
    if FORM.code == "dense":
        w = raw
        if w.dtype != COMPUTE:
            w = portable.cast(portable.widen(raw), COMPUTE)
    else:
        w = portable.cast(weight_tile(raw, field, block, row, weight, FORM), COMPUTE)
    return w


@triton.jit
def _inputs(
    x: tl.tensor,
    source: tl.tensor,
    at: tl.tensor,
    x_stride: tl.tensor,
    num_inputs: tl.tensor,
    COMPUTE: tl.constexpr,
    WHOLE: tl.constexpr,
) -> tl.tensor:
    """Return x.T for some rows and inputs, in the product's type: [width, BT]. source [1, BT], at [width, 1]."""
    if WHOLE:
        part = tl.load(x + source * x_stride + at)
    else:
        part = tl.load(x + source * x_stride + at, mask=at < num_inputs, other=0.0)
    if part.dtype != COMPUTE:
        part = portable.cast(portable.widen(part), COMPUTE)
    return part


@triton.jit
def _segment(
    total: tl.tensor,
    segment: tl.tensor,
    segment_runs: tl.tensor,
    x: tl.tensor,
    source: tl.tensor,
    x_stride: tl.tensor,
    row: tl.tensor,
    num_inputs: tl.tensor,
    weight: Weight,
    FORM: tl.constexpr,
    COMPUTE: tl.constexpr,
    WHOLE: tl.constexpr,
) -> tl.tensor:
    """Return total + W @ x.T over the runs of one segment: float32 [BN, BT]. source [1, BT], row [BN, 1]."""
    FIELDS: tl.constexpr = FORM.fields
    num_runs = tl.cdiv(num_inputs, FORM.run)
    first_run = segment * segment_runs
    last_run = tl.minimum(first_run + segment_runs, num_runs)
    for run in range(first_run, last_run):
        raw = stored_run(weight, row, run, num_inputs, FORM, WHOLE)
        for field in tl.static_range(FIELDS):
            block = run * FIELDS + field
            w = _weights(raw, field, block, row, weight, FORM, COMPUTE)
            at = block * FORM.width + tl.arange(0, FORM.width)[:, None]
            part = _inputs(x, source, at, x_stride, num_inputs, COMPUTE, WHOLE)
            total = portable.dot(w, part, total)
    return total


@triton.jit
def _total(
    x: tl.tensor,
    source: tl.tensor,
    x_stride: tl.tensor,
    row: tl.tensor,
    num_inputs: tl.tensor,
    segment_runs: tl.tensor,
    weight: Weight,
    FORM: tl.constexpr,
    COMPUTE: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SPLIT: tl.constexpr,
    WHOLE: tl.constexpr,
    BN: tl.constexpr,
    BT: tl.constexpr,
) -> tl.tensor:
    """Return this program's part of W @ x.T, float32 [BN, BT]: its own segment, or all segments added in order."""
    total = tl.zeros([BN, BT], tl.float32)
    if SPLIT or SEGMENTS == 1:
        segment = tl.program_id(1)
        total = _segment(
            total, segment, segment_runs, x, source, x_stride, row, num_inputs, weight, FORM, COMPUTE, WHOLE
        )
    else:
        for segment in range(SEGMENTS):
            part = tl.zeros([BN, BT], tl.float32)
            part = _segment(
                part, segment, segment_runs, x, source, x_stride, row, num_inputs, weight, FORM, COMPUTE, WHOLE
            )
            total = total + part
    return total


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
    total = _total(
        x, source, x_stride, row, num_inputs, segment_runs, weight, FORM, COMPUTE, SEGMENTS, SPLIT, WHOLE, BN, BT
    )
    if SPLIT:
        inside = is_output[:, None] & is_row[None, :]
        first = partial + target[None, :] * num_outputs + (first_column + row)
        size = tl.cast(num_rows, tl.int64) * num_outputs
        counter = counters + tl.program_id(0)
        is_last = leave_segment(total, first + tl.program_id(1) * size, inside, counter, SEGMENTS)
        if not is_last:
            return
        total = join_segments(first, size, inside, counter, SEGMENTS)
    if bias is not None:
        total = total + portable.widen(tl.load(bias + first_column + row))
    if GATE is not None:
        total = open_block(total, GATE, out.dtype.element_ty)
        num_outputs = num_outputs // 2
    column = first_column + tl.arange(0, total.shape[0])
    inside = (column < num_outputs)[:, None] & is_row[None, :]
    store_block(total, out + target[None, :] * out_stride + column[:, None], inside, ACCUMULATE)
