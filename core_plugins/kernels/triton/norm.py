"""Root-mean-square and layer norms, over rows or over heads.

Owns: their kernel and its launch. Never does: add a residual (products do that). Called by: the provider.

A program takes one row (of one head) as a whole, so the order of its sum is fixed by the width alone.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from core_plugins.kernels.triton import portable
from core_plugins.kernels.triton.catalog import KernelRow
from core_plugins.kernels.triton.launch import options, power_of_two

STEPS = ("x_stride", "x_head", "out_stride", "out_head", "weight_head", "width")


@triton.jit(do_not_specialize=STEPS)
def normalize(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    x_stride: int,
    x_head: int,
    out_stride: int,
    out_head: int,
    weight_head: int,
    width: tl.tensor,
    eps: float,
    CENTRED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row of one head: program (row, head). CENTRED: of a layer norm. bias may be absent."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < width
    numbers = portable.widen(tl.load(x + row * x_stride + head * x_head + at, mask=inside, other=0.0))
    if CENTRED:
        mean = portable.div(tl.sum(numbers, axis=0), width.to(tl.float32))
        numbers = tl.where(inside, numbers - mean, 0.0)
    squares = tl.sum(numbers * numbers, axis=0)
    mean_square = portable.div(squares, width.to(tl.float32))
    length = tl.sqrt_rn(mean_square + eps)
    normed = portable.div(numbers, length)
    factor = portable.widen(tl.load(weight + head * weight_head + at, mask=inside, other=0.0))
    result = normed * factor
    if bias is not None:
        shift = portable.widen(tl.load(bias + head * weight_head + at, mask=inside, other=0.0))
        result = result + shift
    portable.store(out + row * out_stride + head * out_head + at, result, inside)


def norm_rows(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor, *, centred: bool) -> None:
    """out[T, H] of x [T, H]; out may be x."""
    rows, width = x.shape
    if rows:
        steps = (x.stride(0), 0, out.stride(0), 0, 0, width)
        _launch((rows, 1), x, weight, bias, out, steps, eps, centred)


def norm_heads(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, centred: bool) -> None:
    """In place over the last axis of x [T, H, D], weight and bias [D] or [H, D]."""
    rows, heads, width = x.shape
    by_head = width if weight.dim() > 1 else 0
    steps = (x.stride(0), x.stride(1), x.stride(0), x.stride(1), by_head, width)
    if rows:
        _launch((rows, heads), x, weight, bias, x, steps, eps, centred)


def _launch(
    grid: tuple[int, int],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    steps: tuple[int, ...],
    eps: float,
    centred: bool,
) -> None:
    block = power_of_two(steps[-1])
    launched = options(_warps(block))
    normalize[grid](x, weight, bias, out, *steps, eps, CENTRED=centred, BLOCK=block, **launched)


def _warps(block: int) -> int:
    return min(max(block // 512, 1), 16)


def _row(kind: str, block: int, centred: bool, has_bias: bool) -> KernelRow:
    words = ["layer norm" if centred else "rms norm", f"of {kind}, up to {block} wide"]
    signature = {"x": f"*{kind}", "weight": "*fp32", "out": f"*{kind}"}
    signature |= dict.fromkeys(STEPS, "i32") | {"eps": "fp32"}
    constants: dict[str, object] = {"CENTRED": centred, "BLOCK": block}
    if has_bias:
        signature["bias"] = "*fp32"
        words.append("with a bias")
    else:
        constants["bias"] = None
    return KernelRow(" ".join(words), f"{__name__}:normalize", signature, constants, num_warps=_warps(block))


ROWS = (
    *(_row(kind, block, False, False) for kind in ("bf16", "fp16", "fp32") for block in (64, 128, 4096, 8192)),
    *(_row(kind, 4096, True, has_bias) for kind in ("bf16", "fp32") for has_bias in (False, True)),
)
