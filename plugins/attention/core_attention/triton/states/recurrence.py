"""The recurrence of a layer with a state, and its launch.

Owns: its shape and its scalar parameters. Never does: know a formula (the kernel does). Called by: the ops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import triton
from torch import Tensor

from core_attention.triton.states.common import FLAGS, States
from core_attention.triton.states.scan_kernel import scan
from core_runtime.contracts import BatchView

STATE_TILE: Final = 2048
"""Numbers of a state per program."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Per-token inputs of a scan, see `scan`; steps and betas may be strided."""

    mixed: Tensor
    steps: Tensor
    selected: Tensor
    betas: Tensor


@dataclass(frozen=True, slots=True)
class Rates:
    """Tables of a scan, float32. rate: decay rates. bias: of dt."""

    rate: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The compile-time parameters of `scan`.

    op: `mamba1`, `mamba2`, `gated_delta` or `kda`. heads: heads with a state. shared: key heads, or groups of B and C.
    rows, size: of a head's state. tile: rows per program. padded: size rounded up to a power of 2.
    base: numbers of the window before the state. words: numbers per block.
    has_floor: whether decays have a lower limit.
    """

    op: str
    heads: int
    shared: int
    rows: int
    tile: int
    size: int
    padded: int
    base: int
    words: int
    has_floor: bool


class Scan:
    """The recurrence of a layer, see `scan`. shared: key heads, or groups. rows, size: of a head's state."""

    def __init__(
        self,
        op: str,
        heads: int,
        shared: int,
        rows: int,
        size: int,
        states: States,
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        numbers = numbers or {}
        floor = numbers.get("decay_floor")
        own = recurrence(op, heads, shared, rows, size, states.window, states.words, floor is not None)
        self.states = states
        self.grid = (heads, triton.cdiv(rows, own.tile))
        self.scalars = (
            numbers.get("beta_scale", 1.0),
            numbers.get("qk_eps", 0.0),
            numbers.get("dt_scale", 1.0),
            numbers.get("dt_min", 0.0),
            numbers.get("dt_max", math.inf),
            floor or 0.0,
        )
        self.constants = {"SCAN": own, **FLAGS}

    def __call__(self, tokens: Tokens, rates: Rates, view: BatchView, out: Tensor) -> None:
        """Compute out [T, HEADS * ROWS] and advance the states."""
        read = (tokens.mixed, tokens.steps, tokens.selected, tokens.betas)
        strides = [tensor.stride(0) for tensor in (*read, out)]
        places = (view.cu_seqlens_q, view.seq_lens, view.block_table, view.block_table.stride(0))
        tables = (out, self.states.cache, rates.rate, rates.bias)
        scan[(view.num_seqs, *self.grid)](*read, *tables, *places, *strides, *self.scalars, **self.constants)


def recurrence(
    op: str, heads: int, shared: int, rows: int, size: int, base: int, words: int, has_floor: bool
) -> Recurrence:
    """Return the parameters with the tile of a program chosen."""
    padded = triton.next_power_of_2(size)
    tile = min(triton.next_power_of_2(rows), max(1, STATE_TILE // padded))
    return Recurrence(op, heads, shared, rows, tile, size, padded, base, words, has_floor)
