"""RMS and layer norms, over rows or over heads; between two residual branches fused with the addition.

Owns: their kernels and launches. Never does: multiply matrices. Called by: the provider.

A program handles one whole row (of one head), so the order of its sum is fixed by the width alone.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from core_kernels.triton import portable
from core_kernels.triton.compiling.catalog import KernelRow, size_of
from core_kernels.triton.compiling.launch import options, power_of_two, start

STEPS = ("x_stride", "x_head", "out_stride", "out_head", "weight_head", "width")
JOINT_STEPS = ("x_stride", "residual_stride", "out_stride", "width")


@triton.jit
def normalize(
    x: tl.tensor,
    rows: tl.tensor,
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
    EARLY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Normalize one row of one head: program (row, head). CENTRED: layer norm. bias may be absent. rows: int64, the row
    of x for each row of out; absent: the same one.
    """
    portable.begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < width
    source = row
    if rows is not None:
        source = tl.load(rows + row)
    numbers = portable.widen(tl.load(x + source * x_stride + head * x_head + at, mask=inside, other=0.0))
    if CENTRED:
        mean = portable.div(tl.sum(numbers, axis=0), tl.cast(width, tl.float32))
        numbers = tl.where(inside, numbers - mean, 0.0)
    result = _scaled(numbers, weight + head * weight_head + at, inside, width, eps)
    if bias is not None:
        shift = portable.widen(tl.load(bias + head * weight_head + at, mask=inside, other=0.0))
        result = result + shift
    portable.store(out + row * out_stride + head * out_head + at, result, inside)


@triton.jit
def _scaled(numbers: tl.tensor, weight: tl.tensor, inside: tl.tensor, width: tl.tensor, eps: tl.tensor) -> tl.tensor:
    """Divide numbers [BLOCK], 0 outside, by the root of their mean square and multiply by their weights. weight:
    pointers [BLOCK].
    """
    squares = tl.sum(numbers * numbers, axis=0)
    mean_square = portable.div(squares, tl.cast(width, tl.float32))
    length = tl.sqrt_rn(mean_square + eps)
    normed = portable.div(numbers, length)
    factor = portable.widen(tl.load(weight, mask=inside, other=0.0))
    return normed * factor


@triton.jit
def add_normalize(
    x: tl.tensor,
    before: tl.tensor,
    residual: tl.tensor,
    behind: tl.tensor,
    out: tl.tensor,
    x_stride: int,
    residual_stride: int,
    out_stride: int,
    width: tl.tensor,
    eps: float,
    EARLY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Compute for one row: residual += the norm of x, out = the norm of residual. before, behind: weights; `before` may
    be absent.

    Intermediate results are rounded as `normalize` and the addition would store them.
    """
    portable.begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    numbers = portable.widen(tl.load(x + row * x_stride + at, mask=inside, other=0.0))
    if before is not None:
        normed = _scaled(numbers, before + at, inside, width, eps)
        numbers = portable.widen(portable.cast(normed, x.dtype.element_ty))
    place = residual + row * residual_stride + at
    total = portable.widen(tl.load(place, mask=inside, other=0.0)) + numbers
    portable.store(place, total, inside)
    kept = portable.widen(portable.cast(total, residual.dtype.element_ty))
    result = _scaled(kept, behind + at, inside, width, eps)
    portable.store(out + row * out_stride + at, result, inside)


def norm_rows(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    out: Tensor,
    *,
    centred: bool,
    rows: Tensor | None = None,
    early: bool = False,
) -> None:
    """Compute out[T, H] = the norm of x [T, H]; out may be x. rows: int64 [T], of x, whose norms are wanted alone."""
    count, width = out.shape
    if count:
        steps = (x.stride(0), 0, out.stride(0), 0, 0, width)
        _launch((count, 1), (x, rows, weight, bias, out), steps, eps, centred, early)


def norm_heads(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, centred: bool, early: bool = False
) -> None:
    """Normalize x [T, H, D] in place over its last axis; weight and bias [D] or [H, D]."""
    rows, heads, width = x.shape
    by_head = width if weight.dim() > 1 else 0
    steps = (x.stride(0), x.stride(1), x.stride(0), x.stride(1), by_head, width)
    if rows:
        _launch((rows, heads), (x, None, weight, bias, x), steps, eps, centred, early)


def add_norm_rows(
    x: Tensor,
    before: Tensor | None,
    residual: Tensor,
    behind: Tensor,
    eps: float,
    out: Tensor,
    *,
    early: bool = False,
) -> None:
    """Add and normalize: the `AddNorm` contract. x, residual and out are [T, H]."""
    rows, width = x.shape
    steps = (x.stride(0), residual.stride(0), out.stride(0), width)
    block = power_of_two(width)
    launched = options(_warps(block)) | start(x.device, early)
    if rows:
        add_normalize[(rows,)](x, before, residual, behind, out, *steps, eps, BLOCK=block, **launched)


def _launch(
    grid: tuple[int, int],
    tensors: tuple[Tensor, Tensor | None, Tensor, Tensor | None, Tensor],
    steps: tuple[int, ...],
    eps: float,
    centred: bool,
    early: bool,
) -> None:
    """Launch `normalize`. tensors: its own, in its order."""
    block = power_of_two(steps[-1])
    launched = options(_warps(block, centred=centred)) | start(tensors[0].device, early)
    normalize[grid](*tensors, *steps, eps, CENTRED=centred, BLOCK=block, **launched)


def _warps(block: int, *, centred: bool = False) -> int:
    """Return the warps of a program; a layer norm has twice as many, since it spilled registers on sm_100."""
    return min(max(block // (256 if centred else 512), 1), 16)


def _row(kind: str, block: int, centred: bool, has_bias: bool, takes: bool = False) -> KernelRow:
    words = ["layer norm" if centred else "rms norm", f"of {kind}, up to {block} wide"]
    signature = {"x": f"*{kind}", "weight": "*fp32", "out": f"*{kind}"}
    signature |= dict.fromkeys(STEPS, "i32") | {"eps": "fp32"}
    constants: dict[str, object] = {"rows": None, "CENTRED": centred, "EARLY": False, "BLOCK": block}
    if takes:
        signature["rows"] = "*i64"
        del constants["rows"]
        words.append("of some rows")
    if has_bias:
        signature["bias"] = "*fp32"
        words.append("with a bias")
    else:
        constants["bias"] = None
    function = f"{__name__}:normalize"
    reads = (block * size_of(kind), block * size_of("fp32"))
    warps = _warps(block, centred=centred)
    return KernelRow(" ".join(words), function, signature, constants, num_warps=warps, reads=reads)


def _joint_row(kind: str, block: int, has_two: bool) -> KernelRow:
    signature = {name: f"*{kind}" for name in ("x", "residual", "out")}
    signature |= {"behind": "*fp32", "eps": "fp32"} | dict.fromkeys(JOINT_STEPS, "i32")
    constants: dict[str, object] = {"EARLY": False, "BLOCK": block}
    if has_two:
        signature["before"] = "*fp32"
    else:
        constants["before"] = None
    words = "norm, add and norm" if has_two else "add and norm"
    name = f"{words} of {kind}, up to {block} wide"
    reads = (*(block * size_of(kind),) * 2, block * size_of("fp32"))
    return KernelRow(name, f"{__name__}:add_normalize", signature, constants, num_warps=_warps(block), reads=reads)


ROWS = (
    *(_joint_row(kind, 4096, has_two) for kind in ("bf16", "fp16", "fp32") for has_two in (False, True)),
    *(_joint_row("bf16", 8192, has_two) for has_two in (False, True)),
    *(_row(kind, block, False, False) for kind in ("bf16", "fp16", "fp32") for block in (64, 128, 4096, 8192)),
    *(_row(kind, 4096, False, False, takes=True) for kind in ("bf16", "fp16", "fp32")),
    *(_row(kind, 4096, True, has_bias) for kind in ("bf16", "fp32") for has_bias in (False, True)),
)
