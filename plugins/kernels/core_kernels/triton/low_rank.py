"""Updates of adapters: the kernels of their two products.

Owns: both kernels and their launches. Never does: lay out an adapter (`low_rank_table` does). Called by: tables of adapters.

An update is found through the table: row → address of its words → addresses of its matrices. Programs take some rows of
the batch and go through the adapters that these rows have, usually one. With few rows a program takes a single one, so
that programs read different adapters at once. Either way a row goes through the same operations: a tile of 16 rows, of
which the others are empty or masked, on the matrix units; then sums in the order of the ranks.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from core_kernels.triton import portable
from core_kernels.triton.compiling.catalog import KernelRow
from core_kernels.triton.compiling.launch import blocks, options

HEAD: Final = tl.constexpr(4)
"""Words of an update: address of A, sum of the ranks, number of parts, 0; then the words of each part."""
PART: Final = tl.constexpr(8)
"""Words of a part: first output, number of outputs, its place among the ranks, rank, addresses of B, gain and shift (0:
none), scale.
"""
BT: Final = 16
BR: Final = 16
BK: Final = 64
BN: Final = 128
AT_ONCE: Final = 4
"""Ranks whose numbers are loaded together."""
SINGLE_ROWS: Final = 128
"""Up to this many rows, each has programs of its own."""
COMPUTE: Final = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
STEPS = ("num_rows", "num_outputs", "width", "out_stride")


@triton.jit
def _address(words: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Read an address of numbers of a type. Tensors begin at multiples of 16 bytes."""
    return tl.multiple_of(tl.load(words).to(tl.pointer_type(dtype)), 16)


@triton.jit(do_not_specialize=STEPS)
def inner(
    x: tl.tensor,
    which: tl.tensor,
    table: tl.tensor,
    partial: tl.tensor,
    num_rows: int,
    x_stride: int,
    num_inputs: int,
    width: int,
    segment_size: int,
    STORED: tl.constexpr,
    COMPUTE: tl.constexpr,
    EACH: tl.constexpr,
    BT: tl.constexpr,
    BR: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    """Compute one segment of A x: program (EACH rows, segment). partial: float32 [segments, num_rows, width].

    STORED: type of A. COMPUTE: type of the product's operands.
    """
    place = tl.arange(0, BT)
    row = tl.program_id(0) * EACH + place
    inside = (place < EACH) & (row < num_rows)
    segment = tl.program_id(1)
    begin = segment * segment_size
    end = begin + segment_size
    adapter = tl.load(which + row, mask=inside, other=-1)
    left = adapter >= 0
    while tl.max(left.to(tl.int32)) > 0:
        current = tl.max(tl.where(left, adapter, -1))
        mine = left & (adapter == current)
        left = left & (adapter != current)
        address = tl.load(table + current)
        if address != 0:
            words = address.to(tl.pointer_type(tl.int64))
            a = _address(words, STORED)
            ranks = tl.load(words + 1).to(tl.int32)
            for first in range(0, ranks, BR):
                rank = first + tl.arange(0, BR)
                acc = tl.zeros([BT, BR], tl.float32)
                for start in range(begin, end, BK):
                    k = start + tl.arange(0, BK)
                    known = k < end
                    at = row.to(tl.int64)[:, None] * x_stride + k[None, :]
                    rows = tl.load(x + at, mask=mine[:, None] & known[None, :], other=0.0)
                    place_a = rank.to(tl.int64)[:, None] * num_inputs + k[None, :]
                    part = tl.load(a + place_a, mask=(rank < ranks)[:, None] & known[None, :], other=0.0)
                    left_side = portable.cast(portable.widen(rows), COMPUTE)
                    right_side = portable.cast(portable.widen(part), COMPUTE)
                    acc = portable.dot(left_side, tl.trans(right_side), acc)
                to = (segment.to(tl.int64) * num_rows + row)[:, None] * width + rank[None, :]
                tl.store(partial + to, acc, mask=mine[:, None] & (rank < ranks)[None, :])


@triton.jit
def _two(place: tl.tensor, step: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Return the sum of two neighbouring segments."""
    return tl.load(place, mask=mask, other=0.0) + tl.load(place + step, mask=mask, other=0.0)


@triton.jit
def _four(place: tl.tensor, step: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Return the sum of four neighbouring segments."""
    return _two(place, step, mask) + _two(place + 2 * step, step, mask)


@triton.jit
def _joined(place: tl.tensor, step: tl.tensor, mask: tl.tensor, SEGMENTS: tl.constexpr) -> tl.tensor:
    """Return the sum of the segments' sums, added as a binary tree. step: from a segment to the next."""
    if SEGMENTS == 1:
        return tl.load(place, mask=mask, other=0.0)
    elif SEGMENTS == 2:
        return _two(place, step, mask)
    elif SEGMENTS == 4:
        return _four(place, step, mask)
    else:
        return _four(place, step, mask) + _four(place + 4 * step, step, mask)


@triton.jit(do_not_specialize=STEPS)
def outer(
    partial: tl.tensor,
    which: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    num_rows: int,
    num_outputs: int,
    width: int,
    out_stride: int,
    STORED: tl.constexpr,
    SEGMENTS: tl.constexpr,
    EACH: tl.constexpr,
    AT_ONCE: tl.constexpr,
    BN: tl.constexpr,
) -> None:
    """Compute out = gain * (out + scale * B (A x)) + shift: program (EACH rows, tile of outputs)."""
    row = (tl.program_id(0) * EACH + tl.arange(0, EACH)).to(tl.int64)
    first = tl.program_id(1) * BN
    output = first + tl.arange(0, BN)
    adapter = tl.load(which + row, mask=row < num_rows, other=-1)
    step = tl.cast(num_rows, tl.int64) * width
    left = adapter >= 0
    while tl.max(left.to(tl.int32)) > 0:
        current = tl.max(tl.where(left, adapter, -1))
        mine = left & (adapter == current)
        left = left & (adapter != current)
        address = tl.load(table + current)
        if address != 0:
            words = address.to(tl.pointer_type(tl.int64))
            parts = tl.load(words + 2).to(tl.int32)
            for part in range(parts):
                own = words + HEAD + part * PART
                begin = tl.load(own).to(tl.int32)
                size = tl.load(own + 1).to(tl.int32)
                if (begin < first + BN) & (begin + size > first):
                    inside = (output >= begin) & (output < begin + size)
                    offset = tl.load(own + 2).to(tl.int32)
                    rank = tl.load(own + 3).to(tl.int32)
                    b = _address(own + 4, STORED)
                    place = partial + row * width + offset
                    acc = tl.zeros([EACH, BN], tl.float32)
                    # The interpreter cannot spread the comparison of two scalars over a mask.
                    by_row = tl.zeros([EACH], tl.int32) + rank
                    by_output = tl.zeros([BN], tl.int32) + rank
                    for start in range(0, rank, AT_ONCE):
                        for nth in tl.static_range(AT_ONCE):
                            r = start + nth
                            numbers = _joined(place + r, step, mine & (by_row > r), SEGMENTS)
                            column = b + size.to(tl.int64) * r + (output - begin)
                            factors = portable.widen(tl.load(column, mask=inside & (by_output > r), other=0.0))
                            acc += numbers[:, None] * factors[None, :]
                    _apply(own, out, row, out_stride, output, output - begin, mine[:, None] & inside[None, :], acc)


@triton.jit
def _apply(
    own: tl.tensor,
    out: tl.tensor,
    row: tl.tensor,
    out_stride: int,
    output: tl.tensor,
    nth: tl.tensor,
    mask: tl.tensor,
    acc: tl.tensor,
) -> None:
    """Update the outputs by B (A x). nth: number of each output within the part."""
    bits = tl.load(own + 7).to(tl.int32)
    scale = bits.to(tl.float32, bitcast=True)
    to = out + row[:, None] * out_stride + output[None, :]
    value = portable.widen(tl.load(to, mask=mask, other=0.0)) + scale * acc
    gain = tl.load(own + 5)
    if gain != 0:
        value = value * tl.load(gain.to(tl.pointer_type(tl.float32)) + nth[None, :], mask=mask, other=1.0)
    shift = tl.load(own + 6)
    if shift != 0:
        value = value + tl.load(shift.to(tl.pointer_type(tl.float32)) + nth[None, :], mask=mask, other=0.0)
    portable.store(to, value, mask)


def update_rows(
    x: Tensor, which: Tensor, table: Tensor, out: Tensor, *, stored: torch.dtype, width: int, segments: int
) -> None:
    """Apply to each out[t], of [T, N], the updates in row which[t] of the table for x[t], of [T, K].

    table: int64 [rows], addresses of words, 0 for empty rows. stored: dtype of A and B. width: the largest sum of ranks.
    """
    num_rows, num_inputs = x.shape
    if not num_rows:
        return
    num_outputs = out.shape[1]
    each = 1 if num_rows <= SINGLE_ROWS else BT
    runs = blocks(num_rows, each)
    compute = x.dtype if x.dtype is stored else torch.float32
    partial = x.new_empty((segments, num_rows, width), dtype=torch.float32)
    sizes = (num_rows, x.stride(0), num_inputs, width, num_inputs // segments)
    constants = {"STORED": COMPUTE[stored], "EACH": each}
    own = {"COMPUTE": COMPUTE[compute], "BT": BT, "BR": BR, "BK": BK}
    inner[runs, segments](x, which, table, partial, *sizes, **constants, **own, **options(4, 3))
    own = {"SEGMENTS": segments, "AT_ONCE": AT_ONCE, "BN": BN}
    grid = (runs, blocks(num_outputs, BN))
    steps = (num_rows, num_outputs, width, out.stride(0))
    outer[grid](partial, which, table, out, *steps, **constants, **own, **options(4, fusion=False))


def _rows() -> list[KernelRow]:
    found = []
    numbers = {"bf16": tl.bfloat16, "fp16": tl.float16, "fp32": tl.float32}
    address = {"which": "*i32", "table": "*i64", "partial": "*fp32"}
    counts = dict.fromkeys(("num_rows", "x_stride", "num_inputs", "width", "segment_size"), "i32")
    steps = dict.fromkeys(STEPS, "i32")
    for kind in numbers:
        for stored in dict.fromkeys((kind, "fp32", "bf16")):
            compute = numbers[kind if kind == stored else "fp32"]
            for each in (1, BT):
                constants = {"STORED": numbers[stored], "EACH": each}
                title = f"{kind}, adapters of {stored}, {each} rows"
                tile = {"COMPUTE": compute, "BT": BT, "BR": BR, "BK": BK}
                signature = {"x": f"*{kind}", **address, **counts}
                found.append(
                    KernelRow(
                        f"low rank inner {title}",
                        f"{__name__}:inner",
                        signature,
                        {**constants, **tile},
                        num_stages=3,
                    )
                )
                tile = {"SEGMENTS": 8, "AT_ONCE": AT_ONCE, "BN": BN}
                signature = {**address, "out": f"*{kind}", **steps}
                found.append(
                    KernelRow(
                        f"low rank outer {title}",
                        f"{__name__}:outer",
                        signature,
                        {**constants, **tile},
                        fp_fusion=False,
                    )
                )
    return found


ROWS = tuple(_rows())
