"""Rotary position embedding of queries and keys, both in one launch.

Owns: the kernel and its launch. Never does: make the tables. Called by: the provider.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from core_kernels.triton import portable
from core_kernels.triton.compiling.catalog import KernelRow
from core_kernels.triton.compiling.launch import options, power_of_two

STEPS = ("q_heads", "q_stride", "q_head", "k_stride", "k_head", "half")


@triton.jit(do_not_specialize=("q_heads",))
def rotate(
    q: tl.tensor,
    k: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    positions: tl.tensor,
    q_heads: int,
    q_stride: int,
    q_head: int,
    k_stride: int,
    k_head: int,
    half: int,
    BLOCK: tl.constexpr,
) -> None:
    """Rotate one head of one row: program (row, head); heads of k follow those of q."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < half
    angle = tl.load(positions + row) * half + at
    c = tl.load(cos + angle, mask=inside, other=1.0)
    s = tl.load(sin + angle, mask=inside, other=0.0)
    if head < q_heads:
        _turn(q + row * q_stride + head * q_head, at, inside, half, c, s)
    else:
        _turn(k + row * k_stride + (head - q_heads) * k_head, at, inside, half, c, s)


@triton.jit
def _turn(place: tl.tensor, at: tl.tensor, inside: tl.tensor, half: tl.tensor, c: tl.tensor, s: tl.tensor) -> None:
    """Rotate the pairs (i, i + half) at a place, in memory."""
    first = portable.widen(tl.load(place + at, mask=inside, other=0.0))
    second = portable.widen(tl.load(place + half + at, mask=inside, other=0.0))
    portable.store(place + at, first * c - second * s, inside)
    portable.store(place + half + at, second * c + first * s, inside)


def rotate_heads(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
    """Rotate q [T, Hq, D] and k [T, Hkv, D] in place: pairs (i, i + R/2) of the first R = 2 * cos.shape[1] of D."""
    rows, heads, _ = q.shape
    half = cos.shape[1]
    grid = (rows, heads + k.shape[1])
    steps = (heads, q.stride(0), q.stride(1), k.stride(0), k.stride(1), half)
    if rows:
        rotate[grid](q, k, cos, sin, positions, *steps, BLOCK=power_of_two(half), **options(1))


def _row(kind: str, block: int) -> KernelRow:
    signature = {"q": f"*{kind}", "k": f"*{kind}", "cos": "*fp32", "sin": "*fp32", "positions": "*i64"}
    signature |= dict.fromkeys(STEPS, "i32")
    name = f"rotary of {kind}, up to {block} pairs"
    return KernelRow(name, f"{__name__}:rotate", signature, {"BLOCK": block}, num_warps=1)


ROWS = tuple(_row(kind, block) for kind in ("bf16", "fp16", "fp32") for block in (32, 64))
