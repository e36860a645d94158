"""The sums of a product: W @ x.T over the segments of the inputs, for a block of outputs and a block of rows.

Owns: these Triton functions, and the order of the sums. Never does: store. Called by: `kernel.py`.

SCALES says what a weight's scales multiply, and follows from the weight alone:
    `numbers`: each number before the product, or there are none (dense weights).
    `blocks`, `runs`: the sum over the inputs of a block, or of a run; codes are multiplied as they are, without rounding.
    `rows`: the sum over all inputs, after the segments have been added.
GROUP is the number of inputs that share a scale of blocks or runs, else 0; a constant because divisions by it are shifts then.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_kernels.triton import portable
from core_kernels.triton.products.codes import decoded
from core_kernels.triton.products.tile import Weight, place_of_scale, stored_run, weight_tile, wide_scale

ALL_INPUTS = tl.constexpr(1 << 30)
"""More inputs than a block has: the matrix units add up all of a block themselves."""


@triton.jit
def _numbers(
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
    dtype: tl.constexpr,
    CODED: tl.constexpr,
    WHOLE: tl.constexpr,
) -> tl.tensor:
    """Return x.T for some rows and inputs, in the product's type: [width, BT]. source [1, BT], at [width, 1]."""
    if WHOLE:
        part = tl.load(x + source * x_stride + at)
    else:
        part = tl.load(x + source * x_stride + at, mask=at < num_inputs, other=0)
    if CODED:
        if dtype == tl.float8e4nv:
            part = part.to(tl.float8e4nv, bitcast=True)
        else:
            part = portable.cast(portable.decode_e4m3(part), dtype)
    elif part.dtype != dtype:
        part = portable.cast(portable.widen(part), dtype)
    return part


@triton.jit
def _dot(w: tl.tensor, x: tl.tensor, total: tl.tensor, AT_ONCE: tl.constexpr) -> tl.tensor:
    """Return total + w @ x. AT_ONCE: with 8-bit floats, inputs after which sums of the matrix units, which keep fewer
    digits than float32, are added to `total`.
    """
    if w.dtype == tl.float8e4nv:
        return tl.dot(w, x, total, max_num_imprecise_acc=AT_ONCE)
    return portable.dot(w, x, total)


@triton.jit
def _ahead(
    weight: Weight, row: tl.tensor, run: tl.tensor, FORM: tl.constexpr, SCALES: tl.constexpr, GROUP: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Load the scales and the zero points of a run's first and last block as they are stored: [rows, 1] each. Something
    else takes the place of those that a loop does not read.
    """
    scale_0 = row
    scale_1 = row
    zero_0 = row
    zero_1 = row
    if GROUP > 0:
        first = place_of_scale(weight, row, run * FORM.fields, GROUP, FORM)
        last = first
        if SCALES == "blocks" and FORM.fields > 1:
            last = place_of_scale(weight, row, run * FORM.fields + 1, GROUP, FORM)
        scale_0 = tl.load(weight.scale + first)
        scale_1 = tl.load(weight.scale + last)
        if weight.zeros is not None:
            zero_0 = tl.load(weight.zeros + first).to(tl.int32)
            zero_1 = tl.load(weight.zeros + last).to(tl.int32)
    elif SCALES == "rows" and weight.zeros is not None:
        zero_0 = tl.load(weight.zeros + row).to(tl.int32)
        zero_1 = zero_0
    return scale_0, scale_1, zero_0, zero_1


@triton.jit
def _segment(
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
    DECODING: tl.constexpr,
    SCALES: tl.constexpr,
    GROUP: tl.constexpr,
    CODED: tl.constexpr,
    WHOLE: tl.constexpr,
    BN: tl.constexpr,
    BT: tl.constexpr,
) -> tl.tensor:
    """Return W @ x.T over the runs of one segment: float32 [BN, BT]. source [1, BT], row [BN, 1]."""
    FIELDS: tl.constexpr = FORM.fields
    total = tl.zeros([BN, BT], tl.float32)
    num_runs = tl.cdiv(num_inputs, FORM.run)
    first_run = segment * segment_runs
    last_run = tl.minimum(first_run + segment_runs, num_runs)
    # Scales and zero points are too narrow for the compiler's pipeline of copies: they are loaded one run ahead.
    scale_0, scale_1, zero_0, zero_1 = _ahead(weight, row, first_run, FORM, SCALES, GROUP)
    for run in range(first_run, last_run):
        raw = stored_run(weight, row, run, num_inputs, FORM, WHOLE)
        next_scale_0, next_scale_1, next_zero_0, next_zero_1 = _ahead(weight, row, run + 1, FORM, SCALES, GROUP)
        part = tl.zeros([BN, BT], tl.float32)
        for field in tl.static_range(FIELDS):
            block = run * FIELDS + field
            at = block * FORM.width + tl.arange(0, FORM.width)[:, None]
            inputs = _inputs(x, source, at, x_stride, num_inputs, COMPUTE, CODED, WHOLE)
            if SCALES == "numbers":
                total = _dot(_numbers(raw, field, block, row, weight, FORM, COMPUTE), inputs, total, FORM.width)
            else:
                zero = weight.zero
                if weight.zeros is not None:
                    zero = zero_1 if field else zero_0
                codes = decoded(raw, zero, field, FORM, COMPUTE, DECODING)
                if SCALES == "rows":
                    total = _dot(codes, inputs, total, FORM.width)
                elif SCALES == "runs":
                    part = _dot(codes, inputs, part, ALL_INPUTS)
                else:
                    part = _dot(codes, inputs, tl.zeros([BN, BT], tl.float32), ALL_INPUTS)
                    total = _added(total, part, scale_1 if field else scale_0, FORM)
        if SCALES == "runs":
            total = _added(total, part, scale_0, FORM)
        scale_0, scale_1, zero_0, zero_1 = next_scale_0, next_scale_1, next_zero_0, next_zero_1
    return total


@triton.jit
def _added(total: tl.tensor, part: tl.tensor, scale: tl.tensor, FORM: tl.constexpr) -> tl.tensor:
    """Return total + part * scale, rounded once. scale: as stored, [rows, 1]."""
    factor = tl.broadcast_to(wide_scale(scale, FORM), total.shape)
    return tl.fma(part, factor, total)


@triton.jit
def sum_of(
    x: tl.tensor,
    source: tl.tensor,
    x_stride: tl.tensor,
    row: tl.tensor,
    num_inputs: tl.tensor,
    segment_runs: tl.tensor,
    weight: Weight,
    FORM: tl.constexpr,
    COMPUTE: tl.constexpr,
    DECODING: tl.constexpr,
    SCALES: tl.constexpr,
    GROUP: tl.constexpr,
    CODED: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SPLIT: tl.constexpr,
    WHOLE: tl.constexpr,
    BN: tl.constexpr,
    BT: tl.constexpr,
) -> tl.tensor:
    """Return this program's part of W @ x.T, float32 [BN, BT]: its own segment, or all segments added in order."""
    if SPLIT or SEGMENTS == 1:
        total = _segment(
            tl.program_id(1), segment_runs, x, source, x_stride, row, num_inputs, weight,
            FORM, COMPUTE, DECODING, SCALES, GROUP, CODED, WHOLE, BN, BT,
        )  # fmt: skip
    else:
        total = tl.zeros([BN, BT], tl.float32)
        for segment in range(SEGMENTS):
            total = total + _segment(
                segment, segment_runs, x, source, x_stride, row, num_inputs, weight,
                FORM, COMPUTE, DECODING, SCALES, GROUP, CODED, WHOLE, BN, BT,
            )  # fmt: skip
    return total


@triton.jit
def scaled(
    total: tl.tensor,
    scale: tl.tensor,
    row_scale: tl.tensor,
    x_scale: tl.tensor,
    output: tl.tensor,
    source: tl.tensor,
    SCALES: tl.constexpr,
) -> tl.tensor:
    """Return a whole sum times the scales of its outputs and of its rows of x; absent ones are None.

    output, source: numbers of the outputs and of the rows of x, in shapes that broadcast to that of `total`.
    """
    if SCALES == "rows":
        total = total * portable.widen(tl.load(scale + output))
    if SCALES != "numbers" and row_scale is not None:
        total = total * tl.load(row_scale + output)
    if x_scale is not None:
        total = total * tl.load(x_scale + source)
    return total
