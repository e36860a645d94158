"""Products with prepared weights: out = x @ W.T, for a whole batch or for experts' own rows.

Owns: the launches of the products. Never does: prepare a weight, compute (`core_kernels.triton.products.kernel` does).
Called by: linear layers, layers of experts.

The inputs are divided into equal segments, whose number depends on the weight's shape alone and which are added in
order. A row's bits therefore depend neither on other rows nor on their number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from core_kernels.triton.compiling.launch import architecture_of, blocks, options
from core_kernels.triton.products.codes import Decoding, decoding_for
from core_kernels.triton.products.kernel import join, product
from core_kernels.triton.products.packed import Form, Packed, Scales
from core_kernels.triton.products.tiles import SPLIT_ROWS, Tiles, Use, segments_of, weight_word

COMPUTE = {
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float32: tl.float32,
    torch.float8_e4m3fn: tl.float8e4nv,
}
JOIN_BLOCK = 512
SIMPLE_DENSE: Final = Form("dense", width=32)
"""Dense weights without matrix units: narrow blocks that leave registers for sums."""
FLOATS8_WIDTH: Final = 128
"""Inputs per block of a product of 8-bit floats; so many the matrix units add up themselves."""


@dataclass(frozen=True, slots=True)
class Routed:
    """The assignment of rows to experts, see `product`.

    pairs: int32 [blocks * rows per block]. experts: int32 [blocks]. divisor: choices per token, or 1.
    count: number of experts. block_rows: rows per block, a power of 2 from 16 on.
    """

    pairs: Tensor
    experts: Tensor
    divisor: int
    count: int
    block_rows: int


def multiply(
    x: Tensor,
    weight: Packed,
    out: Tensor,
    bias: Tensor | None,
    *,
    compute: torch.dtype,
    tiles: Tiles,
    accumulate: bool = False,
    routed: Routed | None = None,
    x_scale: Tensor | None = None,
) -> None:
    """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`; with `routed`, each row uses its expert's
    matrix.

    weight: with experts, all their weights concatenated, with the shape of one.
    compute: type to which both operands are rounded before the product.
    x_scale: float32, a scale for each row of x, whose numbers are then bytes of e4m3, as the weight's must be. Chips
        with such products compute them as they are, others as bfloat16, which holds them exactly.
    """
    num_outputs, num_inputs = weight.shape
    num_rows = len(x) if routed is None else len(out)
    if not num_rows:
        return
    chip = architecture_of(x.device)
    decoding = decoding_for(chip, weight.form.code)
    if x_scale is not None:
        compute = torch.float8_e4m3fn if decoding == "ptx_floats8" else torch.bfloat16
    form = form_for(weight, compute)
    word = weight_word(form, compute)
    if routed is None:
        segments = segments_of(num_outputs, num_inputs)
        use: Use = "plain" if segments == 1 else "segments"
        tile = tiles.tile_for(chip, word, use, weight.shape, num_rows)
        num_blocks = blocks(num_rows, tile.bt)
        routing, block_rows, divisor = (None, None), tile.bt, 1
    else:
        segments = 1
        block_rows = routed.block_rows
        tile = tiles.tile_for(chip, word, "experts", weight.shape, block_rows, block_rows)
        num_blocks = len(routed.experts) * (block_rows // tile.bt)
        routing, divisor = (routed.pairs, routed.experts), routed.divisor
    split = segments > 1 and num_rows <= SPLIT_ROWS
    segment_runs = blocks(blocks(num_inputs, form.run), segments)
    target = x.new_empty((segments, num_rows, num_outputs), dtype=torch.float32) if split else out
    counts = (num_rows, num_outputs, num_inputs, num_blocks, block_rows)
    steps = (*counts, x.stride(0), target.stride(-2), segment_runs, divisor)
    scales = replace(weight, form=form).scales
    constants = product_constants(
        form, compute, decoding, scales, weight.super_size, segments, split, accumulate and not split
    )
    constants |= {"WHOLE": num_inputs % form.run == 0, "BN": tile.bn, "BT": tile.bt}
    grid = (blocks(num_outputs, tile.bn) * num_blocks, segments if split else 1)
    launched = options(tile.warps, tile.stages, fusion=False)
    own_bias = None if split else bias
    read = (x, x_scale, target, own_bias, *routing, *weight.tensors)
    product[grid](*read, *steps, *weight.sizes, **constants, **launched)
    if split:
        scale = weight.scale if scales == "rows" else None
        row_scale = None if scales == "numbers" else weight.row_scale
        _join(target, (scale, row_scale, x_scale), scales, bias, out, accumulate)


def form_for(weight: Packed, compute: torch.dtype) -> Form:
    """Return the form as which a product of a type reads a weight: its own, in blocks of the width that suits the type."""
    num_inputs = weight.shape[1]
    if weight.form.code == "dense" and compute is torch.float32:
        return SIMPLE_DENSE
    shared = num_inputs if weight.super_size >= num_inputs else weight.super_size
    fits = num_inputs % FLOATS8_WIDTH == 0 and shared % FLOATS8_WIDTH == 0
    if compute is torch.float8_e4m3fn and fits:
        return replace(weight.form, width=FLOATS8_WIDTH)
    return weight.form


def product_constants(
    form: Form,
    compute: torch.dtype,
    decoding: Decoding,
    scales: Scales,
    group: int,
    segments: int,
    split: bool,
    accumulate: bool,
) -> dict[str, object]:
    """Return the compile-time arguments of `product`, without those of a tile and of sizes."""
    used = "portable" if scales == "numbers" else decoding
    shared = group if scales in ("blocks", "runs") else 0
    own = {"COMPUTE": COMPUTE[compute], "DECODING": used, "SCALES": scales, "GROUP": shared}
    return {"FORM": form, **own, "SEGMENTS": segments, "SPLIT": split, "ACCUMULATE": accumulate}


def _join(
    partial: Tensor,
    factors: tuple[Tensor | None, Tensor | None, Tensor | None],
    scales: Scales,
    bias: Tensor | None,
    out: Tensor,
    accumulate: bool,
) -> None:
    """Add segments. factors: scales of outputs, of outputs again, and of rows of x, with which sums are multiplied."""
    segments, num_rows, num_outputs = partial.shape
    grid = (num_rows, blocks(num_outputs, JOIN_BLOCK))
    constants = {"SCALES": scales, "SEGMENTS": segments, "ACCUMULATE": accumulate, "BLOCK": JOIN_BLOCK}
    launched = options(4, fusion=False)
    join[grid](partial, *factors, bias, out, num_rows, num_outputs, out.stride(0), **constants, **launched)
