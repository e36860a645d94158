"""The recurrence of a layer with a state, and its launch.

Owns: its shape and its scalar parameters. Never does: know a formula (the kernel does). Called by: the ops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
import triton
from torch import Tensor

from core_attention.triton.states.chunk_kernel import CHUNK, advance, relate
from core_attention.triton.states.common import FLAGS, States
from core_attention.triton.states.scan_kernel import scan
from core_kernels.triton.compiling.launch import chip_of, options
from core_runtime.contracts import BatchView

STATE_TILE: Final = 2048
"""Numbers of a state per program."""
CHUNKED: Final = ("mamba2", "gated_delta")
"""Ops with a form in chunks; the decays of others differ within a head."""
LEAST: Final = 16


class ChunkTile(NamedTuple):
    """A configuration of the kernels of chunks. rows, numbers: of a state at a time. warps: of a program."""

    rows: int = 32
    numbers: int = 32
    warps: int = 4


CHUNK_TILES: Final = {"sm_80": ChunkTile(32, 16, 8), "sm_120": ChunkTile(16, 16, 4)}
"""By chip, what compiles without a spill; the others take the usual one."""
CHUNK_STAGES: Final = 1


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
    part, piece, pieces: in chunks, rows per program, numbers of a state at a time, and how often to cover them all.
    room: numbers that `relate` stores for a chunk.
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
    part: int
    piece: int
    pieces: int
    room: int


class Scan:
    """The recurrence of a layer, see `scan`. shared: key heads, or groups. rows, size: of a head's state. chunked: whether
    whole chunks are computed as such, see `chunk_kernel.py`.
    """

    def __init__(
        self,
        op: str,
        heads: int,
        shared: int,
        rows: int,
        size: int,
        states: States,
        numbers: Mapping[str, float] | None = None,
        chunked: bool = False,
    ) -> None:
        numbers = numbers or {}
        floor = numbers.get("decay_floor")
        chip = chip_of(states.cache.device)
        own = recurrence(op, heads, shared, rows, size, states.window, states.words, floor is not None, chip)
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
        self.own = own
        self.chunked = chunked and op in CHUNKED
        self.precision = "tf32x3" if chip.startswith("sm_") else "ieee"
        self.warps = CHUNK_TILES.get(chip, ChunkTile()).warps

    def __call__(self, tokens: Tokens, rates: Rates, view: BatchView, out: Tensor) -> None:
        """Compute out [T, HEADS * ROWS] and advance the states."""
        if self.chunked and view.max_query_len >= CHUNK.value:
            self._scan(tokens, rates, view, out, "before")
            self._advance(tokens, rates, view, out)
            self._scan(tokens, rates, view, out, "after")
        else:
            self._scan(tokens, rates, view, out, "all")

    def _scan(self, tokens: Tokens, rates: Rates, view: BatchView, out: Tensor, part: str) -> None:
        read = (tokens.mixed, tokens.steps, tokens.selected, tokens.betas)
        strides = [tensor.stride(0) for tensor in (*read, out)]
        places = (view.cu_seqlens_q, view.seq_lens, view.block_table, view.block_table.stride(0))
        tables = (out, self.states.cache, rates.rate, rates.bias)
        constants = {"SCAN": self.own, "PART": part, "CHUNK": CHUNK.value, **FLAGS}
        scan[(view.num_seqs, *self.grid)](*read, *tables, *places, *strides, *self.scalars, **constants)

    def _advance(self, tokens: Tokens, rates: Rates, view: BatchView, out: Tensor) -> None:
        """Compute the step's whole chunks."""
        own = self.own
        read = (tokens.mixed, tokens.steps, tokens.betas)
        strides = [tensor.stride(0) for tensor in read]
        lengths = (view.cu_seqlens_q, view.seq_lens)
        constants = {"SCAN": own, "PRECISION": self.precision}
        constants |= options(self.warps, CHUNK_STAGES, fusion=False)
        windows = len(out) // CHUNK.value
        squares = torch.empty(windows, own.heads, own.room, device=out.device)
        own_tables = (rates.rate, rates.bias)
        numbers = self.scalars[:5]
        relate[(windows, own.heads)](
            *read, squares, *own_tables, *lengths, view.num_seqs, *strides, *numbers, **constants
        )
        places = (*lengths, view.block_table, view.block_table.stride(0))
        grid = (view.num_seqs, own.heads, triton.cdiv(own.rows, own.part))
        advance[grid](tokens.mixed, squares, out, self.states.cache, *places, strides[0], out.stride(0), **constants)


def recurrence(
    op: str, heads: int, shared: int, rows: int, size: int, base: int, words: int, has_floor: bool, chip: str
) -> Recurrence:
    """Return the parameters with the tiles of programs chosen."""
    padded = triton.next_power_of_2(size)
    tile = min(triton.next_power_of_2(rows), max(1, STATE_TILE // padded))
    in_chunks = CHUNK_TILES.get(chip, ChunkTile())
    part = min(max(triton.next_power_of_2(rows), LEAST), in_chunks.rows)
    piece = min(max(padded, LEAST), in_chunks.numbers)
    squares = 2 if op == "gated_delta" else 1
    room = CHUNK.value * (4 + squares * CHUNK.value)
    pieces = triton.cdiv(size, piece)
    return Recurrence(op, heads, shared, rows, tile, size, padded, base, words, has_floor, part, piece, pieces, room)
