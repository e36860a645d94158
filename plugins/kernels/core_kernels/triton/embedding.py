"""Unpacking of single rows of a prepared weight: the embedding of tokens.

Owns: the kernel, its launch and its catalog rows. Never does: multiply. Called by: linear layers.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from core_kernels.triton import portable
from core_kernels.triton.compiling.catalog import KernelRow, size_of
from core_kernels.triton.compiling.launch import blocks, options, start
from core_kernels.triton.products.forms import PACKED_FORMS, weight_types
from core_kernels.triton.products.kernel import SIZES, UNALIGNED
from core_kernels.triton.products.packed import Form, Packed
from core_kernels.triton.products.tile import Weight, stored_run, weight_tile

STEPS = ("num_ids", "num_inputs", "out_stride")
BLOCK_IDS = 16


@triton.jit
def _store_run(
    place: tl.tensor,
    row: tl.tensor,
    run: tl.tensor,
    is_row: tl.tensor,
    num_inputs: tl.tensor,
    weight: Weight,
    FORM: tl.constexpr,
    WHOLE: tl.constexpr,
) -> None:
    """Store one run of some rows. place: start of each row of the result, [rows, 1], like `row` and `is_row`."""
    FIELDS: tl.constexpr = FORM.fields
    raw = stored_run(weight, row, run, num_inputs, FORM, WHOLE)
    for field in tl.static_range(FIELDS):
        block = run * FIELDS + field
        if FORM.code == "dense":
            w = portable.widen(raw)
        else:
            w = weight_tile(raw, field, block, row, weight, FORM)
        at = block * FORM.width + tl.arange(0, FORM.width)[None, :]
        portable.store(place + at, w, is_row & (at < num_inputs))


@triton.jit(do_not_specialize=("num_ids", *UNALIGNED))
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
    FORM: tl.constexpr,
    WHOLE: tl.constexpr,
    EARLY: tl.constexpr,
    BT: tl.constexpr,
) -> None:
    """Unpack one run of some rows of the weight: program (block of rows, run)."""
    portable.begin(EARLY)
    weight = Weight(
        values, high, scale, sub_scale, minimum, sub_minimum, zeros, row_scale, table,
        value_stride, high_stride, scale_stride, sub_stride, super_size, group_size, zero,
    )  # fmt: skip
    place = tl.program_id(0) * BT + tl.arange(0, BT)
    run = tl.program_id(1)
    is_row = place < num_ids
    row = tl.load(ids + place, mask=is_row, other=0)
    begin = out + place.to(tl.int64) * out_stride
    _store_run(begin[:, None], row[:, None], run, is_row[:, None], num_inputs, weight, FORM, WHOLE)


def take_weights(weight: Packed, ids: Tensor, out: Tensor, *, early: bool = False) -> None:
    """Compute out[T, K] = W[ids], ids int64 [T]."""
    form = weight.form
    num_ids = len(ids)
    num_inputs = weight.shape[1]
    constants = {"FORM": form, "WHOLE": num_inputs % form.run == 0, "BT": BLOCK_IDS}
    grid = (blocks(num_ids, BLOCK_IDS), blocks(num_inputs, form.run))
    if num_ids:
        steps = (num_ids, num_inputs, out.stride(0))
        launched = options(4) | start(out.device, early)
        take[grid](ids, out, *weight.tensors, *steps, *weight.sizes, **constants, **launched)


def _row(form: Form, present: tuple[str, ...]) -> KernelRow:
    signature, absent = weight_types(form, "bf16", *present)
    signature |= {"ids": "*i64", "out": "*bf16"} | dict.fromkeys(STEPS + SIZES, "i32")
    constants = absent | {"FORM": form, "WHOLE": True, "EARLY": False, "BT": BLOCK_IDS}
    name = f"embedding, {form.code} {' '.join(present)}".strip()
    reads = (BLOCK_IDS * form.width * size_of(signature["values"]),)
    return KernelRow(name, f"{__name__}:take", signature, constants, reads=reads)


ROWS = tuple(_row(form, present) for form, present in ((Form("dense"), ()), *PACKED_FORMS[:2]))
