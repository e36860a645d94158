"""Activations of an MLP, gated and ungated.

Owns: their kernels and launches. Never does: multiply matrices. Called by: the provider.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from core_kernels.triton import portable
from core_kernels.triton.compiling.catalog import KernelRow, size_of
from core_kernels.triton.compiling.launch import blocks, options, start
from core_runtime.layers.activations import NUMBERS, PAIRED, parse

BLOCK = 1024
STEPS = ("x_stride", "out_stride", "width")
NUMBER_NAMES = ("first", "second", "third", "fourth")


@dataclass(frozen=True, slots=True)
class Gate:
    """A gated activation for which a kernel is compiled. first to fourth: its parameters; 0 for absent ones."""

    kind: str
    first: float = 0.0
    second: float = 0.0
    third: float = 0.0
    fourth: float = 0.0


@functools.cache
def gate_of(activation: str) -> Gate:
    """Return the gate of an activation's name."""
    kind, numbers = parse(activation)
    return Gate(kind, *numbers)


@triton.jit
def active(
    x: tl.tensor, first: tl.tensor, second: tl.tensor, third: tl.tensor, fourth: tl.tensor, KIND: tl.constexpr
) -> tl.tensor:
    """Return act(x) in float32; the numbers are the activation's parameters."""
    if KIND == "silu":
        result = x * portable.sigmoid(x)
    elif KIND == "gelu_tanh":
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        result = 0.5 * x * (1.0 + portable.tanh(inner))
    elif KIND == "gelu":
        result = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "relu":
        result = tl.maximum(x, 0.0)
    elif KIND == "relu2":
        positive = tl.maximum(x, 0.0)
        result = positive * positive
    elif KIND == "quick_gelu":
        result = x * portable.sigmoid(1.702 * x)
    else:
        # xielu: alpha above zero, alpha below zero, beta, epsilon
        above = first * x * x
        capped = tl.minimum(x, fourth)
        below = (portable.expm1(capped) - x) * second
        result = tl.where(x > 0, above, below) + third * x
    return result


@triton.jit
def opened(
    gate: tl.tensor,
    up: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    third: tl.tensor,
    fourth: tl.tensor,
    KIND: tl.constexpr,
) -> tl.tensor:
    """Return act(gate) * up in float32."""
    if KIND == "clamped_swiglu":
        capped = tl.minimum(gate, second)
        within = tl.minimum(tl.maximum(up, -second), second)
        result = capped * portable.sigmoid(first * capped) * (within + 1.0)
    elif KIND == "clamped_silu":
        within = tl.minimum(tl.maximum(up, -first), first)
        result = tl.minimum(gate * portable.sigmoid(gate), first) * within
    else:
        result = active(gate, first, second, third, fourth, KIND) * up
    return result


@triton.jit
def activate(
    x: tl.tensor,
    out: tl.tensor,
    x_stride: int,
    out_stride: int,
    width: int,
    first: float,
    second: float,
    third: float,
    fourth: float,
    KIND: tl.constexpr,
    GATED: tl.constexpr,
    EARLY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Compute out = act(x), or act(x[:, :width]) * x[:, width:] when GATED: program (row, block of columns)."""
    portable.begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    place = x + row * x_stride + at
    gate = portable.widen(tl.load(place, mask=inside, other=0.0))
    if GATED:
        up = portable.widen(tl.load(place + width, mask=inside, other=0.0))
        result = opened(gate, up, first, second, third, fourth, KIND)
    else:
        result = active(gate, first, second, third, fourth, KIND)
    portable.store(out + row * out_stride + at, result, inside)


def activate_rows(x: Tensor, activation: str, out: Tensor, *, gated: bool, early: bool = False) -> None:
    """Compute out[T, I] = act(x), or act(x[:, :I]) * x[:, I:]. Raises ValueError when an activation that needs a gate
    has none.
    """
    kind, numbers = parse(activation)
    if kind in PAIRED and not gated:
        raise ValueError(f"activation '{activation}' is of a gate and what it opens; the layer has no gate")
    rows, width = out.shape
    padded = (*numbers, 0.0, 0.0, 0.0, 0.0)[:4]
    steps = (x.stride(0), out.stride(0), width)
    grid = (rows, blocks(width, BLOCK))
    if rows:
        constants = {"KIND": kind, "GATED": gated, "BLOCK": BLOCK}
        # products that compute a gate have no fusion either, so both give the same bits
        launched = options(4, fusion=False) | start(x.device, early)
        activate[grid](x, out, *steps, *padded, **constants, **launched)


def _row(number: str, kind: str, gated: bool) -> KernelRow:
    signature = {"x": f"*{number}", "out": f"*{number}"}
    signature |= dict.fromkeys(STEPS, "i32") | dict.fromkeys(NUMBER_NAMES, "fp32")
    constants = {"KIND": kind, "GATED": gated, "EARLY": False, "BLOCK": BLOCK}
    name = f"{kind}{' gated' if gated else ''} {number}"
    reads = (BLOCK * size_of(number),) * (1 + gated)
    return KernelRow(name, f"{__name__}:activate", signature, constants, fp_fusion=False, reads=reads)


ROWS = (
    *(_row(number, kind, True) for number in ("bf16", "fp16", "fp32") for kind in ("silu", "gelu_tanh")),
    *(_row("bf16", kind, True) for kind in NUMBERS if kind not in ("silu", "gelu_tanh")),
    *(_row("bf16", kind, False) for kind in NUMBERS if kind not in PAIRED),
)
