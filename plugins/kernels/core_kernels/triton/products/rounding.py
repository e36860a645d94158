"""Quantization of product inputs to signed 8-bit integers, with a scale per row and group or per row, or to 8-bit floats.

Owns: the groups of a weight's inputs, and the rounding kernels. Never does: multiply. Called by: linear layers, layers
of experts.

A scale is the largest magnitude in its group divided by 127. `round_inputs` returns the dequantized values, in the type
of the inputs; `encode_rows` returns the integers. Floats are e4m3, with 448 in place of 127.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from core.api.specs import Activation
from core_kernels.triton import portable
from core_kernels.triton.compiling.catalog import KernelRow, size_of
from core_kernels.triton.compiling.launch import blocks, options, power_of_two
from core_runtime.weights.canonical import INPUT_GROUP
from core_runtime.weights.formats import CanonicalWeight, Dense, HasGroups

STEPS = ("x_stride", "out_stride", "num_inputs", "span", "group")
ROW_STEPS = ("x_stride", "num_inputs")
GROUPS_AT_ONCE: Final = 128
"""Groups per program, where rows consist of whole groups."""
LARGEST = tl.constexpr(127.0)
LARGEST_E4M3 = tl.constexpr(448.0)
HALFWAY = tl.constexpr(12582912.0)
"""1.5 · 2^23: adding it to a small float32 and subtracting it again rounds to an integer, ties to even."""


class Groups(NamedTuple):
    """The quantization groups of a row of inputs.

    span: inputs that are divided into groups independently, from the first one on.
    size: inputs per group; the last group of a span may be smaller.
    """

    span: int
    size: int


def groups_of(weight: CanonicalWeight, activation: Activation) -> Groups | None:
    """Return the groups in which a weight's inputs are quantized; None if they are not quantized to integers.

    Raises ValueError for weight groups that do not fill the inputs, which cannot be divided.
    """
    num_inputs = weight.shape[1]
    if activation == "int8_row":
        return Groups(num_inputs, num_inputs)
    if activation != "int8" or isinstance(weight, Dense):
        return None
    shared = weight.group_size if isinstance(weight, HasGroups) else num_inputs
    if shared > INPUT_GROUP and num_inputs % shared:
        raise ValueError(f"groups of {shared} do not fill {num_inputs} inputs, which cannot be rounded in groups then")
    size = min(shared, INPUT_GROUP)
    return Groups(GROUPS_AT_ONCE * size if shared % size == 0 else shared, size)


@triton.jit
def _scales_of(numbers: tl.tensor, MOST: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Return the scale of each group, by which its largest number becomes MOST, and the scale's inverse: 0 for a group of
    zeros.
    """
    largest = tl.max(tl.abs(numbers), 1)
    scale = portable.div(largest, tl.full(largest.shape, MOST, tl.float32))
    is_any = scale > 0
    inverse = portable.div(tl.full(scale.shape, 1.0, tl.float32), tl.where(is_any, scale, 1.0))
    return scale, tl.where(is_any, inverse, 0.0)


@triton.jit
def _steps_of(numbers: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return integers from -127 to 127 as float32 [groups, inputs], and the scale of each group."""
    scale, inverse = _scales_of(numbers, LARGEST)
    whole = (numbers * inverse[:, None] + HALFWAY) - HALFWAY
    return tl.minimum(tl.maximum(whole, -LARGEST), LARGEST), scale


@triton.jit
def round_inputs(
    x: tl.tensor,
    out: tl.tensor,
    x_stride: int,
    out_stride: int,
    num_inputs: int,
    span: int,
    group: int,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    """Round one span of one row: program (row, span). GROUPS, SIZE: powers of two that hold the number of groups and
    the size of one.
    """
    row = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, SIZE)[None, :]
    nth = tl.arange(0, GROUPS)[:, None] * group + number
    at = tl.program_id(1) * span + nth
    inside = (number < group) & (nth < span) & (at < num_inputs)
    numbers = portable.widen(tl.load(x + row * x_stride + at, mask=inside, other=0.0))
    steps, scale = _steps_of(numbers)
    portable.store(out + row * out_stride + at, steps * scale[:, None], inside)


@triton.jit
def encode_rows(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    x_stride: int,
    num_inputs: int,
    SIZE: tl.constexpr,
    FLOATS: tl.constexpr,
) -> None:
    """Encode one row: codes int8 [rows, num_inputs], or with FLOATS bytes of e4m3; scales float32 [rows]."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE)[None, :]
    inside = at < num_inputs
    numbers = portable.widen(tl.load(x + row * x_stride + at, mask=inside, other=0.0))
    if FLOATS:
        scale, inverse = _scales_of(numbers, LARGEST_E4M3)
        encoded = portable.encode_e4m3(numbers * inverse[:, None])
    else:
        steps, scale = _steps_of(numbers)
        encoded = steps.to(tl.int8)
    tl.store(codes + row * num_inputs + at, encoded, mask=inside)
    tl.store(scales + row + tl.arange(0, 1), scale)


def rounded(x: Tensor, groups: Groups | None) -> Tensor:
    """Return x [T, K] quantized and dequantized, in its own type; x itself without groups."""
    if groups is None:
        return x
    rows, num_inputs = x.shape
    out = torch.empty((rows, num_inputs), dtype=x.dtype, device=x.device)
    span = min(groups.span, num_inputs)
    tile = {"GROUPS": power_of_two(blocks(span, groups.size)), "SIZE": power_of_two(groups.size)}
    steps = (x.stride(0), num_inputs, num_inputs, span, groups.size)
    launched = options(_warps(tile["GROUPS"] * tile["SIZE"]), fusion=False)
    if rows:
        round_inputs[(rows, blocks(num_inputs, span))](x, out, *steps, **tile, **launched)
    return out


def inputs_of(x: Tensor, groups: Groups | None, activation: Activation) -> tuple[Tensor, Tensor | None]:
    """Return x [T, K] as products read it, and the scales of its rows if they are 8-bit floats."""
    if activation == "fp8_row":
        return encoded_rows(x, floats=True)
    return rounded(x, groups), None


def encoded_rows(x: Tensor, *, floats: bool = False) -> tuple[Tensor, Tensor]:
    """Return int8 [T, K], or with `floats` bytes of e4m3, and the scale of each row, float32 [T], of x [T, K]."""
    rows, num_inputs = x.shape
    codes = torch.empty((rows, num_inputs), dtype=torch.uint8 if floats else torch.int8, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    size = power_of_two(num_inputs)
    if rows:
        launched = options(_warps(size), fusion=False)
        encode_rows[(rows,)](x, codes, scales, x.stride(0), num_inputs, SIZE=size, FLOATS=floats, **launched)
    return codes, scales


def _warps(numbers: int) -> int:
    return min(max(numbers // 1024, 1), 16)


def _rows(kind: str) -> list[KernelRow]:
    number = f"*{kind}"
    signature = {"x": number, "out": number, **dict.fromkeys(STEPS, "i32")}
    found = []
    for what, groups, size in (("groups of 16", 128, 16), ("groups of 32", 128, 32), ("whole rows", 1, 16384)):
        tile = {"GROUPS": groups, "SIZE": size}
        name = f"rounding of {kind} in {what}"
        warps = _warps(groups * size)
        reads = (groups * size * size_of(kind),)
        row = KernelRow(
            name, f"{__name__}:round_inputs", signature, tile, num_warps=warps, fp_fusion=False, reads=reads
        )
        found.append(row)
    signature = {"x": number, "scales": "*fp32", **dict.fromkeys(ROW_STEPS, "i32")}
    for size, floats in ((4096, False), (16384, False), (4096, True), (16384, True)):
        name = f"rows of {kind} as {'e4m3' if floats else 'int8'}, up to {size} wide"
        tile = {"SIZE": size, "FLOATS": floats}
        signature = signature | {"codes": "*u8" if floats else "*i8"}
        warps, reads = _warps(size), (size * size_of(kind),)
        row = KernelRow(name, f"{__name__}:encode_rows", signature, tile, num_warps=warps, fp_fusion=False, reads=reads)
        found.append(row)
    return found


ROWS = tuple(row for kind in ("bf16", "fp16", "fp32") for row in _rows(kind))
