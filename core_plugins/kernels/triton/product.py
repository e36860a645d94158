"""Products with prepared weights: out = x @ W.T, for a whole batch or for experts' own rows.

Owns: the kernels, the order of their sums, and their launches. Never does: prepare a weight. Called by: linear layers,
layers of experts.

A program computes BN outputs of BT rows as W @ x.T, so that the matrix units' wider side lies along the outputs and few
rows waste little. The inputs are cut into equal segments, as many as the weight's shape alone says. Each segment is summed
block by block, and the segments are added in order: by one program, or, where few rows would leave most of the chip idle,
by a second kernel. A row's bits therefore depend neither on other rows nor on their number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from core_plugins.kernels.triton import portable
from core_plugins.kernels.triton.catalog import KernelRow
from core_plugins.kernels.triton.chips import NAMES
from core_plugins.kernels.triton.launch import blocks, chip_of, options
from core_plugins.kernels.triton.packed import Form, Packed
from core_plugins.kernels.triton.product_tiles import SPLIT_ROWS, Tile, segments_of, tile_for, tiles_of
from core_plugins.kernels.triton.tile import from_row, weight_tile

STEPS = ("num_rows", "num_outputs", "num_inputs", "num_blocks", "x_stride", "out_stride", "segment_runs", "divisor")
SIZES = ("value_stride", "high_stride", "scale_stride", "sub_stride", "super_size", "group_size", "zero")
TENSORS = ("values", "high", "scale", "sub_scale", "minimum", "sub_minimum", "zeros", "row_scale", "table")
GROUP = tl.constexpr(8)
"""Blocks of rows whose programs run side by side, so that they share what they read of the weight."""


@triton.jit
def _load_run(
    values: tl.tensor,
    row: tl.tensor,
    run: tl.tensor,
    value_stride: tl.tensor,
    num_inputs: tl.tensor,
    CODE: tl.constexpr,
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
) -> tl.tensor:
    """The stored values of a run, [rows, WIDTH]."""
    at = run * WIDTH + tl.arange(0, WIDTH)[None, :]
    if CODE == "dense" and not WHOLE:
        raw = tl.load(values + row * value_stride + at, mask=at < num_inputs, other=0.0)
    else:
        raw = tl.load(values + row * value_stride + at)
    return raw


@triton.jit
def _sum(
    total: tl.tensor,
    first_run: tl.tensor,
    last_run: tl.tensor,
    x: tl.tensor,
    source: tl.tensor,
    row: tl.tensor,
    values: tl.tensor,
    high: tl.tensor,
    scale: tl.tensor,
    sub_scale: tl.tensor,
    minimum: tl.tensor,
    sub_minimum: tl.tensor,
    zeros: tl.tensor,
    row_scale: tl.tensor,
    table: tl.tensor,
    num_inputs: tl.tensor,
    x_stride: tl.tensor,
    value_stride: tl.tensor,
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
    FIELDS: tl.constexpr,
    COMPUTE: tl.constexpr,
    WHOLE: tl.constexpr,
) -> tl.tensor:
    """total + W @ x.T over some runs: float32 [BN, BT]. source [1, BT], row [BN, 1]."""
    for run in range(first_run, last_run):
        raw = _load_run(values, row, run, value_stride, num_inputs, CODE, WIDTH, WHOLE)
        for field in tl.static_range(FIELDS):
            block = run * FIELDS + field
            if CODE == "dense":
                w = raw
                if w.dtype != COMPUTE:
                    w = portable.cast(portable.widen(raw), COMPUTE)
            else:
                wide = weight_tile(
                    raw, field, block, row, high, scale, sub_scale, minimum, sub_minimum, zeros, row_scale, table,
                    high_stride, scale_stride, sub_stride, super_size, group_size, zero,
                    CODE, LOW_BITS, HIGH_BITS, SCALE, SUB, WIDTH,
                )  # fmt: skip
                w = portable.cast(wide, COMPUTE)
            at = block * WIDTH + tl.arange(0, WIDTH)[:, None]
            if WHOLE:
                part = tl.load(x + source * x_stride + at)
            else:
                part = tl.load(x + source * x_stride + at, mask=at < num_inputs, other=0.0)
            if part.dtype != COMPUTE:
                part = portable.cast(portable.widen(part), COMPUTE)
            total = portable.dot(w, part, total)
    return total


@triton.jit(do_not_specialize=STEPS + SIZES)
def product(
    x: tl.tensor,
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
    CODE: tl.constexpr,
    LOW_BITS: tl.constexpr,
    HIGH_BITS: tl.constexpr,
    SCALE: tl.constexpr,
    SUB: tl.constexpr,
    WIDTH: tl.constexpr,
    FIELDS: tl.constexpr,
    COMPUTE: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SPLIT: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    WHOLE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BN: tl.constexpr,
    BT: tl.constexpr,
) -> None:
    """One block of outputs of one block of rows; program (block, segment).

    num_blocks: of rows. segment_runs: runs of a segment.
    SPLIT: out is float32 [SEGMENTS, num_rows, num_outputs], each segment's own sum.
    pairs: int32 [num_blocks * BT], or absent: which row of `out` each row of a block is, -1: none; the row of x is that
        divided by `divisor`. experts: int32 [num_blocks], the block's expert, -1: nothing to do.
    """
    if ALIGNED:
        value_stride = tl.multiple_of(value_stride, 16)
        x_stride = tl.multiple_of(x_stride, 16)
    pid = tl.program_id(0)
    of_group = GROUP * tl.cdiv(num_outputs, BN)
    first_block = pid // of_group * GROUP
    side_by_side = tl.minimum(num_blocks - first_block, GROUP)
    row_block = first_block + pid % of_group % side_by_side
    first_column = pid % of_group // side_by_side * BN
    column = first_column + tl.arange(0, BN)
    # Within a tile 32 bits are enough; where it begins is one number of 64.
    row = tl.minimum(tl.arange(0, BN), num_outputs - 1 - first_column)[:, None]
    first_row = first_column.to(tl.int64)
    token = row_block * BT + tl.arange(0, BT)
    if pairs is not None:
        expert = tl.load(experts + row_block)
        if expert < 0:
            return
        first_row += expert.to(tl.int64) * num_outputs
        target = tl.load(pairs + token).to(tl.int64)
        is_row = target >= 0
        source = tl.maximum(target, 0) // divisor
    else:
        target = token.to(tl.int64)
        is_row = token < num_rows
        first_token = row_block * BT
        x += first_token.to(tl.int64) * x_stride
        source = tl.minimum(tl.arange(0, BT), num_rows - 1 - first_token)
    source = source[None, :]
    values = from_row(values, first_row, value_stride)
    high = from_row(high, first_row, high_stride)
    scale = from_row(scale, first_row, scale_stride)
    sub_scale = from_row(sub_scale, first_row, sub_stride)
    minimum = from_row(minimum, first_row, scale_stride)
    sub_minimum = from_row(sub_minimum, first_row, sub_stride)
    zeros = from_row(zeros, first_row, scale_stride)
    row_scale = from_row(row_scale, first_row, 1)
    num_runs = tl.cdiv(num_inputs, WIDTH * FIELDS)
    total = tl.zeros([BN, BT], tl.float32)
    if SPLIT or SEGMENTS == 1:
        first_run = tl.program_id(1) * segment_runs
        last_run = tl.minimum(first_run + segment_runs, num_runs)
        total = _sum(
            total, first_run, last_run, x, source, row, values, high, scale, sub_scale, minimum, sub_minimum, zeros,
            row_scale, table, num_inputs, x_stride, value_stride, high_stride, scale_stride, sub_stride, super_size,
            group_size, zero, CODE, LOW_BITS, HIGH_BITS, SCALE, SUB, WIDTH, FIELDS, COMPUTE, WHOLE,
        )  # fmt: skip
    else:
        for segment in range(SEGMENTS):
            first_run = segment * segment_runs
            last_run = tl.minimum(first_run + segment_runs, num_runs)
            part = _sum(
                tl.zeros([BN, BT], tl.float32), first_run, last_run, x, source, row, values, high, scale, sub_scale,
                minimum, sub_minimum, zeros, row_scale, table, num_inputs, x_stride, value_stride, high_stride,
                scale_stride, sub_stride, super_size, group_size, zero, CODE, LOW_BITS, HIGH_BITS, SCALE, SUB, WIDTH,
                FIELDS, COMPUTE, WHOLE,
            )  # fmt: skip
            total = total + part
    inside = (column < num_outputs)[:, None] & is_row[None, :]
    if SPLIT:
        segment_row = tl.program_id(1).to(tl.int64) * num_rows + target
        tl.store(out + segment_row[None, :] * num_outputs + column[:, None], total, mask=inside)
    else:
        if bias is not None:
            shift = portable.widen(tl.load(bias + tl.minimum(column, num_outputs - 1)))
            total = total + shift[:, None]
        place = out + target[None, :] * out_stride + column[:, None]
        if ACCUMULATE:
            total = total + portable.widen(tl.load(place, mask=inside, other=0.0))
        portable.store(place, total, inside)


@triton.jit(do_not_specialize=("num_rows", "num_outputs", "out_stride"))
def join(
    partial: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    num_rows: int,
    num_outputs: int,
    out_stride: int,
    SEGMENTS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Add the segments' sums in order: program (row, block of outputs). partial: float32 [SEGMENTS, rows, outputs]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_outputs
    total = tl.zeros([BLOCK], tl.float32)
    for segment in range(SEGMENTS):
        place = partial + (segment * num_rows + row) * num_outputs + column
        total = total + tl.load(place, mask=inside, other=0.0)
    if bias is not None:
        total = total + portable.widen(tl.load(bias + column, mask=inside, other=0.0))
    place = out + row * out_stride + column
    if ACCUMULATE:
        total = total + portable.widen(tl.load(place, mask=inside, other=0.0))
    portable.store(place, total, inside)


@triton.jit(do_not_specialize=("num_ids", "num_inputs", "out_stride", *SIZES))
def take(
    ids: tl.tensor,
    out: tl.tensor,
    values: tl.tensor,
    high: tl.tensor,
    scale: tl.tensor,
    sub_scale: tl.tensor,
    minimum: tl.tensor,
    sub_minimum: tl.tensor,
    zeros: tl.tensor,
    row_scale: tl.tensor,
    table: tl.tensor,
    num_ids: int,
    num_inputs: int,
    out_stride: int,
    value_stride: int,
    high_stride: int,
    scale_stride: int,
    sub_stride: int,
    super_size: int,
    group_size: int,
    zero: int,
    CODE: tl.constexpr,
    LOW_BITS: tl.constexpr,
    HIGH_BITS: tl.constexpr,
    SCALE: tl.constexpr,
    SUB: tl.constexpr,
    WIDTH: tl.constexpr,
    FIELDS: tl.constexpr,
    WHOLE: tl.constexpr,
    BT: tl.constexpr,
) -> None:
    """Rows of the weight, one run of them: program (block of rows, run)."""
    place = tl.program_id(0) * BT + tl.arange(0, BT)
    run = tl.program_id(1)
    is_row = (place < num_ids)[:, None]
    row = tl.load(ids + place, mask=place < num_ids, other=0)[:, None]
    raw = _load_run(values, row, run, value_stride, num_inputs, CODE, WIDTH, WHOLE)
    for field in tl.static_range(FIELDS):
        block = run * FIELDS + field
        if CODE == "dense":
            w = portable.widen(raw)
        else:
            w = weight_tile(
                raw, field, block, row, high, scale, sub_scale, minimum, sub_minimum, zeros, row_scale, table,
                high_stride, scale_stride, sub_stride, super_size, group_size, zero,
                CODE, LOW_BITS, HIGH_BITS, SCALE, SUB, WIDTH,
            )  # fmt: skip
        at = block * WIDTH + tl.arange(0, WIDTH)[None, :]
        inside = is_row & (at < num_inputs)
        portable.store(out + place.to(tl.int64)[:, None] * out_stride + at, w, inside)


@dataclass(frozen=True, slots=True)
class Routed:
    """Which rows go to which expert: see `product`.

    pairs: int32 [blocks * rows of a block]. experts: int32 [blocks]. divisor: choices of a token, or 1.
    count: E. block_rows: rows of a block.
    """

    pairs: Tensor
    experts: Tensor
    divisor: int
    count: int
    block_rows: int


COMPUTE = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


def multiply(
    x: Tensor,
    weight: Packed,
    out: Tensor,
    bias: Tensor | None,
    *,
    compute: torch.dtype,
    accumulate: bool = False,
    routed: Routed | None = None,
) -> None:
    """out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`; with `routed`, each row by its expert's matrix.

    weight: of all experts one behind the other, with the shape of one, where there are some.
    compute: type to which both are rounded before they are multiplied.
    """
    num_outputs, num_inputs = weight.shape
    num_rows = len(x) if routed is None else len(out)
    if not num_rows:
        return
    form = weight.form
    block_rows = num_rows if routed is None else routed.block_rows
    segments = segments_of(num_outputs, num_inputs) if routed is None else 1
    tile = tile_for(chip_of(x.device), compute, form.code == "dense", segments, block_rows)
    row_blocks = blocks(num_rows, tile.bt) if routed is None else len(routed.experts)
    split = segments > 1 and num_rows <= SPLIT_ROWS
    num_runs = blocks(num_inputs, form.run)
    segment_runs = blocks(num_runs, segments)
    target = x.new_empty((segments, num_rows, num_outputs), dtype=torch.float32) if split else out
    routing = (None, None) if routed is None else (routed.pairs, routed.experts)
    divisor = 1 if routed is None else routed.divisor
    steps = (num_rows, num_outputs, num_inputs, row_blocks, x.stride(0), target.stride(-2), segment_runs, divisor)
    constants = _constants(form, compute, segments, split, accumulate and not split)
    constants |= {"WHOLE": num_inputs % form.run == 0, "ALIGNED": _is_aligned(x, weight), "BN": tile.bn, "BT": tile.bt}
    grid = (blocks(num_outputs, tile.bn) * row_blocks, segments if split else 1)
    launched = options(tile.warps, tile.stages)
    own_bias = None if split else bias
    product[grid](x, target, own_bias, *routing, *weight.tensors, *steps, *weight.sizes, **constants, **launched)
    if split:
        _join(target, bias, out, accumulate)


def take_weights(weight: Packed, ids: Tensor, out: Tensor) -> None:
    """out[T, K] = W[ids], ids int64 [T]."""
    form = weight.form
    num_ids = len(ids)
    num_inputs = weight.shape[1]
    constants = _form_constants(form)
    constants |= {"WHOLE": num_inputs % form.run == 0, "BT": 16}
    grid = (blocks(num_ids, 16), blocks(num_inputs, form.run))
    if num_ids:
        steps = (num_ids, num_inputs, out.stride(0))
        take[grid](ids, out, *weight.tensors, *steps, *weight.sizes, **constants, **options(4))


def _join(partial: Tensor, bias: Tensor | None, out: Tensor, accumulate: bool) -> None:
    segments, num_rows, num_outputs = partial.shape
    grid = (num_rows, blocks(num_outputs, JOIN_BLOCK))
    constants = {"SEGMENTS": segments, "ACCUMULATE": accumulate, "BLOCK": JOIN_BLOCK}
    join[grid](partial, bias, out, num_rows, num_outputs, out.stride(0), **constants, **options(4))


JOIN_BLOCK = 512


def _form_constants(form: Form) -> dict[str, object]:
    return {
        "CODE": form.code,
        "LOW_BITS": form.low_bits,
        "HIGH_BITS": form.high_bits,
        "SCALE": form.scale,
        "SUB": form.sub,
        "WIDTH": form.width,
        "FIELDS": form.fields,
    }


def _constants(form: Form, compute: torch.dtype, segments: int, split: bool, accumulate: bool) -> dict[str, object]:
    constants = _form_constants(form)
    constants |= {"COMPUTE": COMPUTE[compute], "SEGMENTS": segments, "SPLIT": split, "ACCUMULATE": accumulate}
    return constants


def _is_aligned(x: Tensor, weight: Packed) -> bool:
    """Whether rows begin at multiples of 16 numbers."""
    strides = (x.stride(0), weight.values.shape[1])
    return all(stride % 16 == 0 for stride in strides)


_NUMBERS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def _types(form: Form, number: str, *present: str) -> tuple[dict[str, str], dict[str, object]]:
    """Signature and absent tensors of a weight. present: tensors beyond those that the form itself needs."""
    dense = form.code == "dense"
    kinds = {"values": f"*{number}" if dense else "*u8", "high": "*u8", "table": "*fp32", "row_scale": "*fp32"}
    kinds |= {"zeros": "*u8", "sub_scale": "*i8" if form.sub == "int8" else "*u8", "sub_minimum": "*i8"}
    kinds |= {"scale": "*fp16" if form.scale == "plain" else "*u8", "minimum": "*fp16"}
    needed = {"values", *present}
    if not dense:
        needed.add("scale")
    if form.high_bits:
        needed.add("high")
    if form.sub != "none":
        needed.add("sub_scale")
    if form.code == "table":
        needed.add("table")
    signature = {name: kinds[name] for name in TENSORS if name in needed}
    return signature, {name: None for name in TENSORS if name not in needed}


def _product_row(chip: str, form: Form, number: str, tile: Tile, *present: str, **changes: object) -> KernelRow:
    signature, absent = _types(form, number, *present)
    signature |= {"x": f"*{number}", "out": f"*{number}"} | dict.fromkeys(STEPS + SIZES, "i32")
    constants = _constants(form, _NUMBERS[number], 1, False, False) | absent
    constants |= {"WHOLE": True, "ALIGNED": True, "BN": tile.bn, "BT": tile.bt, "bias": None}
    constants |= {"pairs": None, "experts": None}
    constants |= changes
    if changes.get("SPLIT"):
        signature["out"] = "*fp32"
    if changes.get("pairs") == "*i32":
        signature |= {"pairs": "*i32", "experts": "*i32"}
        del constants["pairs"], constants["experts"]
    words = [chip, number, form.code, f"{form.low_bits}+{form.high_bits} bits, {form.scale}, {form.sub}"]
    words += [f"blocks of {form.width}", *present, f"{tile.bn}x{tile.bt}"]
    words += [f"{name}={value}" for name, value in changes.items()]
    return KernelRow(
        "product: " + ", ".join(words),
        f"{__name__}:product",
        signature,
        constants,
        chips=(chip,),
        num_warps=tile.warps,
        num_stages=tile.stages,
        uses_mma=number != "fp32",
    )


PACKED_FORMS: tuple[tuple[Form, tuple[str, ...]], ...] = (
    (Form("int", 4), ()),
    (Form("int", 4), ("zeros",)),
    (Form("int", 4, width=32), ("minimum",)),
    (Form("int", 8, width=32), ()),
    (Form("int8"), ()),
    (Form("e4m3"), ()),
    (Form("e5m2"), ()),
    (Form("table", 4), ()),
    (Form("e2m1", 4, scale="e8m0", width=32), ()),
    (Form("e2m1", 4, scale="e4m3", width=16), ("row_scale",)),
    (Form("int", 2, sub="nibbles", width=16), ("minimum",)),
    (Form("int", 2, 1, sub="int8", width=16), ()),
    (Form("int", 4, sub="int8", width=32), ("minimum", "sub_minimum")),
    (Form("int", 4, 1, sub="int8", width=32), ("minimum", "sub_minimum")),
    (Form("int", 4, 2, sub="int8", width=16), ()),
    (Form("table", 4, sub="int8", width=32), ()),
    (Form("table", 2, 1, sub="int8", width=16), ()),
)
"""Forms that the catalog has rows of, and what they have beyond what their names say."""


def _rows() -> list[KernelRow]:
    rows = []
    for chip in NAMES:
        for number, compute in _NUMBERS.items():
            width = 32 if number == "fp32" else 64
            dense = Form("dense", width=width)
            tiles = tiles_of(chip, compute, True, 1)
            in_segments = tiles_of(chip, compute, True, 8)
            rows += [_product_row(chip, dense, number, tile) for tile in tiles]
            rows.append(_product_row(chip, dense, number, tiles[0], pairs="*i32"))
            rows.append(_product_row(chip, dense, number, in_segments[0], SEGMENTS=8, SPLIT=True))
            rows.append(_product_row(chip, dense, number, in_segments[-1], SEGMENTS=8))
        tiles = tiles_of(chip, torch.bfloat16, False, 1)
        for form, present in PACKED_FORMS:
            rows += [_product_row(chip, form, "bf16", tile, *present) for tile in (tiles[0], tiles[-1])]
    join_types = {"partial": "*fp32", "out": "*bf16", "num_rows": "i32", "num_outputs": "i32", "out_stride": "i32"}
    join_constants = {"bias": None, "SEGMENTS": 8, "ACCUMULATE": True, "BLOCK": JOIN_BLOCK}
    rows.append(KernelRow("join segments", f"{__name__}:join", join_types, join_constants))
    take_sizes = dict.fromkeys(("num_ids", "num_inputs", "out_stride", *SIZES), "i32")
    for form, present in ((Form("dense"), ()), *PACKED_FORMS[:2]):
        signature, absent = _types(form, "bf16", *present)
        signature |= {"ids": "*i64", "out": "*bf16"} | take_sizes
        constants = _form_constants(form) | absent | {"WHOLE": True, "BT": 16}
        name = f"embedding, {form.code} {' '.join(present)}".strip()
        rows.append(KernelRow(name, f"{__name__}:take", signature, constants))
    return rows


ROWS = tuple(_rows())
