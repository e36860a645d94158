"""Products with prepared weights: out = x @ W.T, for a whole batch or for experts' own rows.

Owns: the launches of the products. Never does: prepare a weight, compute (`core_kernels.triton.products.kernel` does).
Called by: linear layers, layers of experts.

The inputs are divided into equal segments, whose number depends on the weight's shape alone and which are added in
order. A row's bits therefore depend neither on other rows nor on their number. Where each segment has its own program,
counters tell which of them comes last: it decides who adds, not in which order. It sets them back to zero, so a recorded
launch can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from core_kernels.triton.activation import Gate
from core_kernels.triton.compiling.launch import architecture_of, blocks, options, start
from core_kernels.triton.products.codes import Decoding, decoding_for
from core_kernels.triton.products.kernel import product
from core_kernels.triton.products.packed import Form, Packed, Scales
from core_kernels.triton.products.tile_rows import LIMITS
from core_kernels.triton.products.tiles import SPLIT_ROWS, Tiles, Use, segments_of, weight_word
from core_runtime.layers.activations import NUMBERS

COMPUTE: Final = {
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float32: tl.float32,
    torch.float8_e4m3fn: tl.float8e4nv,
}
GATES: Final = frozenset(NUMBERS) - {"xielu"}
"""Gates that a product can compute: those whose parameters are alike in all layers, since a kernel is compiled for each."""
LARGEST_OFFSET: Final = (1 << 31) - 1
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
    gate: Gate | None = None,
    early: bool = False,
) -> None:
    """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`; with `routed`, each row uses its expert's
    matrix.

    weight: with experts, all their weights concatenated, with the shape of one; it has `counters` where it has segments.
    gate: of the first half of the outputs, which opens the second: out is [T, N / 2]; not with `accumulate`.
    early: whether the launch may begin before the previous one has ended.
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
    partial = x.new_empty((segments, num_rows, num_outputs), dtype=torch.float32) if split else None
    room = (partial, weight.counters if split else None)
    counts = (num_rows, num_outputs, num_inputs, num_blocks, block_rows)
    steps = (*counts, x.stride(0), out.stride(0), segment_runs, divisor)
    scales = replace(weight, form=form).scales
    constants = product_constants(form, compute, decoding, scales, weight.super_size, segments, split, accumulate, gate)
    constants |= {"WHOLE": num_inputs % form.run == 0, "BN": tile.bn, "BT": tile.bt, **start(x.device, early)}
    grid = (blocks(num_outputs, tile.bn) * num_blocks, segments if split else 1)
    launched = options(tile.warps, tile.stages, fusion=False)
    read = (x, x_scale, out, bias, *room, *routing, *weight.tensors)
    product[grid](*read, *steps, *weight.sizes, **constants, **launched)


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
    gate: Gate | None,
) -> dict[str, object]:
    """Return the compile-time arguments of `product`, without those of a tile, of sizes and of the launch."""
    used = "portable" if scales == "numbers" else decoding
    shared = group if scales in ("blocks", "runs") else 0
    own = {"COMPUTE": COMPUTE[compute], "DECODING": used, "SCALES": scales, "GROUP": shared}
    return {"FORM": form, **own, "SEGMENTS": segments, "SPLIT": split, "ACCUMULATE": accumulate, "GATE": gate}


def holds_gate(weight: Packed) -> bool:
    """Whether a product can compute the gate of its outputs: they are two halves, and 32 bits suffice for the places of
    both in the weight.
    """
    num_outputs, _ = weight.shape
    return num_outputs % 2 == 0 and num_outputs * weight.values.shape[1] <= LARGEST_OFFSET


def counted(weight: Packed) -> Packed:
    """Return a weight with the counters of its blocks, which are zero between two products; they lie at one place for
    good, so a recorded launch finds them.
    """
    num_outputs, num_inputs = weight.shape
    if segments_of(num_outputs, num_inputs) == 1:
        return weight
    most = blocks(num_outputs, LIMITS["bn"][0]) * blocks(SPLIT_ROWS, LIMITS["bt"][0])
    return replace(weight, counters=weight.values.new_zeros(most, dtype=torch.int32))
