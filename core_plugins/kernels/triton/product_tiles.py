"""In which tiles products are computed, by chip, type and number of rows.

Owns: the table, and how many segments a weight's inputs have. Never does: launch. Called by: the products, the catalog.

Tiles differ in what they cost, never in the bits of a row: each output is one chain of sums along the inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from core_plugins.kernels.triton.chips import INTERPRETER

SPLIT_ROWS = 64
"""With more rows, one program adds all segments of its outputs."""
MOST_SEGMENTS = 8
PROGRAMS = 256
"""Blocks of outputs that keep a large chip busy without segments."""
OUTPUTS = 64
SEGMENT_INPUTS = 512
"""Inputs of a segment, at least."""


class Tile(NamedTuple):
    """One configuration.

    rows: at most for which it is chosen; 0: for any number.
    bn: outputs of a program. bt: rows of a program.
    warps: of a program. stages: of its pipeline.
    """

    rows: int
    bn: int
    bt: int
    warps: int
    stages: int


_SMALL = (Tile(16, 64, 16, 4, 4), Tile(32, 64, 32, 4, 4), Tile(64, 64, 64, 4, 3))
_PACKED = (Tile(16, 64, 16, 4, 4), Tile(0, 128, 64, 8, 3))
"""For weights that are decoded in registers, which leaves few for sums."""
_SIMPLE = (Tile(16, 32, 16, 4, 2), Tile(0, 64, 32, 8, 2))
"""For float32, which has no matrix units here."""
TILES: dict[tuple[str, str], tuple[Tile, ...]] = {
    ("sm_80", "dense"): (*_SMALL, Tile(0, 128, 128, 8, 3)),
    ("sm_80", "segments"): (*_SMALL, Tile(0, 128, 64, 8, 3)),
    ("sm_80", "packed"): (Tile(16, 64, 16, 4, 4), Tile(0, 64, 32, 8, 3)),
    ("sm_90", "dense"): (*_SMALL, Tile(0, 128, 128, 8, 4)),
    ("sm_90", "segments"): (*_SMALL, Tile(0, 128, 64, 8, 4)),
    ("sm_90", "packed"): _PACKED,
    ("sm_100", "dense"): (*_SMALL, Tile(0, 128, 128, 8, 4)),
    ("sm_100", "segments"): (*_SMALL, Tile(0, 128, 64, 8, 4)),
    ("sm_100", "packed"): (Tile(16, 64, 16, 8, 4), Tile(0, 128, 64, 8, 3)),
    ("sm_120", "dense"): (*_SMALL, Tile(0, 128, 128, 8, 2)),
    ("sm_120", "segments"): (*_SMALL, Tile(0, 128, 64, 8, 2)),
    ("sm_120", "packed"): (Tile(16, 64, 16, 4, 3), Tile(0, 128, 64, 8, 2)),
    ("gfx942", "dense"): (Tile(16, 64, 16, 4, 2), Tile(64, 64, 64, 4, 2), Tile(0, 128, 128, 8, 2)),
    ("gfx942", "segments"): (Tile(16, 64, 16, 4, 2), Tile(0, 128, 64, 8, 2)),
    ("gfx942", "packed"): (Tile(16, 64, 16, 4, 2), Tile(0, 128, 64, 8, 2)),
}
_INTERPRETED = (Tile(16, 128, 16, 4, 2), Tile(0, 128, 64, 4, 2))


def tiles_of(chip: str, compute: torch.dtype, dense: bool, segments: int) -> tuple[Tile, ...]:
    """The tiles of a chip, for few rows first."""
    if chip == INTERPRETER:
        return _INTERPRETED
    if compute is torch.float32:
        return _SIMPLE
    if not dense:
        return TILES[chip, "packed"]
    return TILES[chip, "dense" if segments == 1 else "segments"]


def tile_for(chip: str, compute: torch.dtype, dense: bool, segments: int, num_rows: int) -> Tile:
    """The tile for a number of rows."""
    tiles = tiles_of(chip, compute, dense, segments)
    return next(tile for tile in tiles if num_rows <= tile.rows or not tile.rows)


def segments_of(num_outputs: int, num_inputs: int) -> int:
    """Into how many segments the inputs of a weight are cut; the shape alone decides."""
    programs = -(-num_outputs // OUTPUTS)
    segments = 1
    while segments < MOST_SEGMENTS and programs * segments < PROGRAMS and num_inputs >= 2 * segments * SEGMENT_INPUTS:
        segments *= 2
    return segments
