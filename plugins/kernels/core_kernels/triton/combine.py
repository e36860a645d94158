"""The weighted sum of the outputs of a token's experts, in the order of `core_runtime.layers.experts.combine`.

Owns: the kernel and its launch. Never does: choose experts. Called by: layers of experts.

A token's experts are added in order of their ids: each of up to eight equal ranges of ids has its own sum, and these
are added as a binary tree. Products and sums are rounded separately.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from core_kernels.triton import portable
from core_kernels.triton.compiling.catalog import KernelRow
from core_kernels.triton.compiling.launch import blocks, options, power_of_two, start
from core_runtime.layers.experts import COMBINE_RANGES

BLOCK = 512
STEPS = ("hidden", "top_k", "range_size", "out_stride")


@triton.jit
def _halved(sums: tl.tensor, HALF: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """Add neighbouring sums: float32 [HALF, BLOCK] from twice as many."""
    neighbours = tl.reshape(sums, (HALF, 2, BLOCK))
    even, odd = tl.split(tl.permute(neighbours, (0, 2, 1)))
    return even + odd


@triton.jit(do_not_specialize=("top_k", "range_size"))
def combine(
    parts: tl.tensor,
    ids: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    hidden: int,
    top_k: int,
    range_size: int,
    out_stride: int,
    ACCUMULATE: tl.constexpr,
    RANGES: tl.constexpr,
    CHOICES: tl.constexpr,
    EARLY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Combine one token's block of columns: program (token, block). parts [T * k, hidden], ids int64 and weights
    float32 [T, k].
    """
    portable.begin(EARLY)
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < hidden
    choice = tl.arange(0, CHOICES)
    is_choice = choice < top_k
    chosen = tl.load(ids + token * top_k + choice, mask=is_choice, other=2**31 - 1).to(tl.int32)
    rank = tl.sum((chosen[None, :] < chosen[:, None]).to(tl.int32), axis=1)
    rank = tl.where(is_choice, rank, -1)
    part = parts + token * top_k * hidden
    own = weights + token * top_k
    of_range = tl.arange(0, RANGES)[:, None]
    sums = tl.zeros([RANGES, BLOCK], tl.float32)
    for step in range(top_k):
        is_next = rank == step
        expert = tl.sum(tl.where(is_next, chosen, 0), axis=0)
        row = tl.sum(tl.where(is_next, choice, 0), axis=0)
        number = portable.widen(tl.load(part + row.to(tl.int64) * hidden + at, mask=inside, other=0.0))
        weighted = tl.load(own + row) * number
        sums = sums + tl.where(of_range == expert // range_size, weighted[None, :], 0.0)
    if RANGES == 8:
        sums = _halved(sums, 4, BLOCK)
    if RANGES >= 4:
        sums = _halved(sums, 2, BLOCK)
    if RANGES >= 2:
        sums = _halved(sums, 1, BLOCK)
    total = tl.reshape(sums, (BLOCK,))
    place = out + token * out_stride + at
    if ACCUMULATE:
        total = total + portable.widen(tl.load(place, mask=inside, other=0.0))
    portable.store(place, total, inside)


def combine_rows(
    parts: Tensor,
    ids: Tensor,
    weights: Tensor,
    out: Tensor,
    num_experts: int,
    accumulate: bool,
    *,
    early: bool = False,
) -> None:
    """Compute out[T, H] = the weighted sum of parts [T * k, H], or += with `accumulate`. ids: int64 [T, k], below
    num_experts.
    """
    tokens, top_k = ids.shape
    hidden = parts.shape[1]
    ranges = 1
    while 2 * ranges <= COMBINE_RANGES and num_experts % (2 * ranges) == 0:
        ranges *= 2
    constants = {"RANGES": ranges, "CHOICES": power_of_two(top_k), "BLOCK": BLOCK, "ACCUMULATE": accumulate}
    steps = (hidden, top_k, num_experts // ranges, out.stride(0))
    grid = (tokens, blocks(hidden, BLOCK))
    if tokens:
        launched = options(4, fusion=False) | start(out.device, early)
        combine[grid](parts, ids, weights, out, *steps, **constants, **launched)


def _row(number: str, ranges: int) -> KernelRow:
    signature = {"parts": f"*{number}", "ids": "*i64", "weights": "*fp32", "out": f"*{number}"}
    signature |= dict.fromkeys(STEPS, "i32")
    constants = {"RANGES": ranges, "CHOICES": 8, "BLOCK": BLOCK, "ACCUMULATE": False, "EARLY": False}
    name = f"combine {number} of {ranges} ranges"
    return KernelRow(name, f"{__name__}:combine", signature, constants, fp_fusion=False, no_fma=True)


ROWS = tuple(_row(number, ranges) for number in ("bf16", "fp32") for ranges in (1, 8))
