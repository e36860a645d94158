"""Elementwise operations, and copies of rows.

Owns: their kernels and launches. Never does: sum. Called by: the provider.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from core_kernels.triton import portable
from core_kernels.triton.compiling.catalog import KernelRow, size_of
from core_kernels.triton.compiling.launch import blocks, options, start

BLOCK = 1024
STEPS = ("x_stride", "out_stride", "width")


@triton.jit
def add(x: tl.tensor, out: tl.tensor, x_stride: int, out_stride: int, width: int, BLOCK: tl.constexpr) -> None:
    """Compute out += x: program (row, block of columns)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    place = out + row * out_stride + at
    total = portable.widen(tl.load(place, mask=inside, other=0.0))
    more = portable.widen(tl.load(x + row * x_stride + at, mask=inside, other=0.0))
    portable.store(place, total + more, inside)


@triton.jit
def scale(x: tl.tensor, factor: float, x_stride: int, width: int, CAPPED: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Compute x *= factor; CAPPED: x = factor * tanh(x / factor)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    place = x + row * x_stride + at
    number = portable.widen(tl.load(place, mask=inside, other=0.0))
    if CAPPED:
        number = portable.tanh(portable.div(number, factor))
    portable.store(place, number * factor, inside)


@triton.jit
def open_gate(
    gate: tl.tensor,
    x: tl.tensor,
    gate_stride: int,
    x_stride: int,
    width: int,
    neighbours: int,
    BLOCK: tl.constexpr,
) -> None:
    """Compute x *= sigmoid(gate), each gate value for some neighbouring elements of x."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    number = portable.widen(tl.load(gate + row * gate_stride + at // neighbours, mask=inside, other=0.0))
    opened = portable.widen(portable.cast(portable.sigmoid(number), x.dtype.element_ty))
    place = x + row * x_stride + at
    portable.store(place, portable.widen(tl.load(place, mask=inside, other=0.0)) * opened, inside)


@triton.jit
def take(
    x: tl.tensor,
    rows: tl.tensor,
    out: tl.tensor,
    x_stride: int,
    out_stride: int,
    width: int,
    EARLY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Copy out = x[rows]: program (row, block of columns)."""
    portable.begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    source = tl.load(rows + row)
    taken = tl.load(x + source * x_stride + at, mask=inside)
    tl.store(out + row * out_stride + at, taken, mask=inside)


def add_rows(x: Tensor, residual: Tensor) -> None:
    """Add x[T, H] to residual[T, H]."""
    grid = _grid(residual)
    if grid[0]:
        add[grid](x, residual, x.stride(0), residual.stride(0), x.shape[1], BLOCK=BLOCK, **options(4))


def scale_rows(x: Tensor, factor: float, *, capped: bool = False) -> None:
    """Compute x[T, W] *= factor, or x = factor * tanh(x / factor)."""
    grid = _grid(x)
    if grid[0]:
        scale[grid](x, factor, x.stride(0), x.shape[1], CAPPED=capped, BLOCK=BLOCK, **options(4))


def open_rows(gate: Tensor, x: Tensor) -> None:
    """Compute x[T, W] *= sigmoid(gate[T, G]): each gate value scales W / G neighbouring elements of x."""
    width = x.shape[1]
    neighbours, left = divmod(width, gate.shape[1])
    if left:
        raise ValueError(f"{gate.shape[1]} numbers of a gate for {width} of x, expected a divisor")
    grid = _grid(x)
    if grid[0]:
        open_gate[grid](gate, x, gate.stride(0), x.stride(0), width, neighbours, BLOCK=BLOCK, **options(4))


def take_rows(x: Tensor, rows: Tensor, out: Tensor, *, early: bool = False) -> None:
    """Copy out[R, H] = x[rows], rows int64 [R] within x."""
    grid = _grid(out)
    if grid[0]:
        launched = options(4) | start(x.device, early)
        take[grid](x, rows, out, x.stride(0), out.stride(0), x.shape[1], BLOCK=BLOCK, **launched)


def _grid(x: Tensor) -> tuple[int, int]:
    rows, width = x.shape
    return rows, blocks(width, BLOCK)


def _rows(kind: str) -> list[KernelRow]:
    steps = dict.fromkeys(STEPS, "i32")
    scaled = {"x": f"*{kind}", "factor": "fp32", "x_stride": "i32", "width": "i32"}
    both = {"x": f"*{kind}", "out": f"*{kind}", **steps}
    gates = {"gate": f"*{kind}", "x": f"*{kind}"}
    gates |= dict.fromkeys(("gate_stride", "x_stride", "width", "neighbours"), "i32")
    one = (BLOCK * size_of(kind),)

    def row(
        name: str, function: str, signature: dict[str, str], reads: tuple[int, ...] = one, **own: bool
    ) -> KernelRow:
        constants = {"BLOCK": BLOCK, **own}
        return KernelRow(f"{name} {kind}", f"{__name__}:{function}", signature, constants, reads=reads)

    return [
        row("add", "add", both, one * 2),
        row("scale", "scale", scaled, CAPPED=False),
        row("soft cap", "scale", scaled, CAPPED=True),
        row("open gate", "open_gate", gates),
        row("take rows", "take", both | {"rows": "*i64"}, EARLY=False),
    ]


ROWS = tuple(row for kind in ("bf16", "fp16", "fp32") for row in _rows(kind))
