"""Kernels around a scan: products with an op's own matrices before it, norm and gate after it.

Owns: kernels on single rows, whose order of summation is fixed by their width. Never does: know a state. Called by:
`layer.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_attention.triton.states import functions
from core_kernels.triton import portable


@triton.jit
def product(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    x_row: tl.tensor,
    out_row: tl.tensor,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    SOFTPLUS: tl.constexpr,
) -> None:
    """Compute TILE outputs of one row: out[T, OUTPUTS] of x [T, INPUTS] and weight [OUTPUTS, INPUTS].

    SOFTPLUS: add the bias and apply softplus.
    """
    row = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = output < OUTPUTS
    sums = tl.zeros([TILE], tl.float32)
    for start in range(0, INPUTS, STEP):
        number = start + tl.arange(0, STEP)
        known = number < INPUTS
        values = portable.widen(tl.load(x + row * x_row + number, mask=known, other=0.0))
        both = inside[:, None] & known[None, :]
        weights = tl.load(weight + output[:, None] * INPUTS + number[None, :], mask=both, other=0.0)
        sums = sums + tl.sum(weights * values[None, :], 1)
    if SOFTPLUS:
        sums = functions.softplus(sums + tl.load(bias + output, mask=inside, other=0.0))
    tl.store(out + row * out_row + output, sums, mask=inside)


@triton.jit
def norm_part(
    x: tl.tensor,
    weight: tl.tensor,
    x_row: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
) -> None:
    """Normalize one row of x [T, WIDTH] in place: divide by the root of the mean of its squares."""
    number = tl.arange(0, PADDED)
    inside = number < WIDTH
    place = x + tl.program_id(0).to(tl.int64) * x_row + number
    values = tl.load(place, mask=inside, other=0.0)
    root = tl.sqrt_rn(tl.sum(values * values, 0) / WIDTH + eps)
    values = portable.div(values, tl.zeros_like(values) + root)
    if HAS_WEIGHT:
        values = values * tl.load(weight + number, mask=inside, other=0.0)
    tl.store(place, values, mask=inside)


@triton.jit
def finish(
    y: tl.tensor,
    mixed: tl.tensor,
    gates: tl.tensor,
    skip: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    y_row: tl.tensor,
    mixed_row: tl.tensor,
    gates_row: tl.tensor,
    out_row: tl.tensor,
    gate_scale: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    UNIT: tl.constexpr,
    PADDED: tl.constexpr,
    SKIP_WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    WEIGHT_SHARED: tl.constexpr,
    SIGMOID: tl.constexpr,
) -> None:
    """Apply skip, norm and gate to UNIT neighbouring elements of one row of y, float32 [T, WIDTH], into out.

    SKIP_WIDTH: elements of `mixed` per element of `skip`; 0: no skip connection. NORM: `none`, `before_gate` or
    `after_gate`; WEIGHT_SHARED: all units have the same weights. SIGMOID: the gate uses sigmoid instead of silu.
    """
    row = tl.program_id(0).to(tl.int64)
    in_unit = tl.arange(0, PADDED)
    number = tl.program_id(1) * UNIT + in_unit
    inside = (in_unit < UNIT) & (number < WIDTH)
    values = tl.load(y + row * y_row + number, mask=inside, other=0.0)
    if SKIP_WIDTH > 0:
        x = tl.load(mixed + row * mixed_row + number, mask=inside, other=0.0)
        values = values + x * tl.load(skip + number // SKIP_WIDTH, mask=inside, other=0.0)
    gate = portable.widen(tl.load(gates + row * gates_row + number, mask=inside, other=0.0)) * gate_scale
    if SIGMOID:
        gate = portable.sigmoid(gate)
    else:
        gate = functions.silu(gate)
    if NORM == "after_gate":
        values = values * gate
    if NORM != "none":
        root = tl.sqrt_rn(tl.sum(values * values, 0) / UNIT + eps)
        values = portable.div(values, tl.zeros_like(values) + root)
        if WEIGHT_SHARED:
            values = values * tl.load(weight + in_unit, mask=inside, other=0.0)
        else:
            values = values * tl.load(weight + number, mask=inside, other=0.0)
    if NORM != "after_gate":
        values = values * gate
    portable.store(out + row * out_row + number, values, inside)
