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
_SIMPLE = (Tile(16, 32, 16, 4, 2), Tile(0, 64, 32, 4, 2))
"""For float32, which has no matrix units here."""
TILES: dict[tuple[str, str], tuple[Tile, ...]] = {
    ("sm_80", "dense"): (*_SMALL, Tile(0, 128, 128, 8, 3)),
    ("sm_80", "packed"): (*_SMALL, Tile(0, 64, 128, 8, 3)),
    ("sm_90", "dense"): (*_SMALL, Tile(0, 128, 128, 8, 4)),
    ("sm_90", "packed"): (*_SMALL, Tile(0, 128, 128, 8, 3)),
    ("sm_100", "dense"): (*_SMALL, Tile(0, 128, 128, 8, 4)),
    ("sm_100", "packed"): (*_SMALL, Tile(0, 128, 128, 8, 3)),
    ("sm_120", "dense"): (*_SMALL, Tile(0, 128, 128, 8, 2)),
    ("sm_120", "packed"): (*_SMALL, Tile(0, 64, 128, 8, 2)),
    ("gfx942", "dense"): (Tile(16, 64, 16, 4, 2), Tile(64, 64, 64, 4, 2), Tile(0, 128, 128, 8, 2)),
    ("gfx942", "packed"): (Tile(16, 64, 16, 4, 2), Tile(64, 64, 64, 4, 2), Tile(0, 64, 128, 8, 2)),
    (INTERPRETER, "dense"): (Tile(16, 128, 16, 4, 2), Tile(0, 128, 64, 4, 2)),
    (INTERPRETER, "packed"): (Tile(16, 128, 16, 4, 2), Tile(0, 128, 64, 4, 2)),
}


def tiles_of(chip: str, compute: torch.dtype, dense: bool) -> tuple[Tile, ...]:
    """The tiles of a chip, for few rows first."""
    if compute is torch.float32 and chip != INTERPRETER:
        return _SIMPLE
    return TILES[chip, "dense" if dense else "packed"]


def tile_for(chip: str, compute: torch.dtype, dense: bool, num_rows: int) -> Tile:
    """The tile for a number of rows."""
    tiles = tiles_of(chip, compute, dense)
    return next(tile for tile in tiles if num_rows <= tile.rows or not tile.rows)


def segments_of(num_outputs: int, num_inputs: int) -> int:
    """Into how many segments the inputs of a weight are cut; the shape alone decides."""
    programs = -(-num_outputs // OUTPUTS)
    segments = 1
    while segments < MOST_SEGMENTS and programs * segments < PROGRAMS and num_inputs >= 2 * segments * SEGMENT_INPUTS:
        segments *= 2
    return segments
