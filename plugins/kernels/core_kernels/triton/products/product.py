"""Products with prepared weights: out = x @ W.T, for a whole batch or for experts' own rows.

Owns: the launches of the products. Never does: prepare a weight, compute (`core_kernels.triton.products.kernel` does).
Called by: linear layers, layers of experts.

The inputs are divided into equal segments, whose number depends on the weight's shape alone and which are added in
order. A row's bits therefore depend neither on other rows nor on their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from core_kernels.triton.compiling.launch import architecture_of, blocks, options
from core_kernels.triton.products.kernel import join, product
from core_kernels.triton.products.packed import Form, Packed
from core_kernels.triton.products.tiles import SPLIT_ROWS, Tiles, Use, segments_of, weight_word

COMPUTE = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
JOIN_BLOCK = 512
SIMPLE_DENSE: Final = Form("dense", width=32)
"""Dense weights without matrix units: narrow blocks that leave registers for sums."""


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
) -> None:
    """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`; with `routed`, each row uses its expert's
    matrix.

    weight: with experts, all their weights concatenated, with the shape of one.
    compute: type to which both operands are rounded before the product.
    """
    num_outputs, num_inputs = weight.shape
    num_rows = len(x) if routed is None else len(out)
    if not num_rows:
        return
    form = SIMPLE_DENSE if weight.form.code == "dense" and compute is torch.float32 else weight.form
    chip = architecture_of(x.device)
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
    constants = product_constants(form, compute, segments, split, accumulate and not split)
    constants |= {"WHOLE": num_inputs % form.run == 0, "BN": tile.bn, "BT": tile.bt}
    grid = (blocks(num_outputs, tile.bn) * num_blocks, segments if split else 1)
    launched = options(tile.warps, tile.stages)
    own_bias = None if split else bias
    product[grid](x, target, own_bias, *routing, *weight.tensors, *steps, *weight.sizes, **constants, **launched)
    if split:
        _join(target, bias, out, accumulate)


def product_constants(
    form: Form, compute: torch.dtype, segments: int, split: bool, accumulate: bool
) -> dict[str, object]:
    """Return the compile-time arguments of `product`, without those of a tile and of sizes."""
    own = {"COMPUTE": COMPUTE[compute], "SEGMENTS": segments, "SPLIT": split, "ACCUMULATE": accumulate}
    return {"FORM": form, **own}


def _join(partial: Tensor, bias: Tensor | None, out: Tensor, accumulate: bool) -> None:
    segments, num_rows, num_outputs = partial.shape
    grid = (num_rows, blocks(num_outputs, JOIN_BLOCK))
    constants = {"SEGMENTS": segments, "ACCUMULATE": accumulate, "BLOCK": JOIN_BLOCK}
    join[grid](partial, bias, out, num_rows, num_outputs, out.stride(0), **constants, **options(4))
