"""In which tiles products are computed: the lines of `product_tiles.txt`, and of a user's own file before them.

Owns: which line is taken, and how many segments a weight's inputs have. Never does: launch. Called by: the products, the
catalog, tuning.

Tiles differ in what they cost, never in the bits of a row: each output is one chain of sums along the inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import torch

from core.api.errors import UserError
from core_kernels.triton.chips import alike
from core_kernels.triton.packed import Form
from core_kernels.triton.tile_rows import MOST_BYTES, Groups, Key, Tile, read_tiles

FILE: Final = Path(__file__).with_name("product_tiles.txt")
SPLIT_ROWS = 64
"""With more rows, one program adds all segments of its outputs."""
MOST_SEGMENTS = 8
PROGRAMS = 256
"""Blocks of outputs that keep a large chip busy without segments."""
OUTPUTS = 64
SEGMENT_INPUTS = 512
"""Inputs of a segment, at least."""


Use = Literal["plain", "segments", "experts"]
"""Whether one program adds segments of its inputs, or its rows are those of experts."""


class Tiles:
    """Tables of tiles, the first one before the others."""

    def __init__(self, *tables: Groups) -> None:
        self._tables = tables
        self._found: dict[tuple[str, str, Use, int, int], tuple[Tile, ...]] = {}

    def of(self, chip: str, weight: str, use: Use, shape: tuple[int, int]) -> tuple[Tile, ...]:
        """The group for a weight of shape (N, K), for few rows first. weight: see `weight_word`."""
        key = chip, weight, use, *shape
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._look(chip, weight, use, shape)
        return found

    def tile_for(self, chip: str, weight: str, use: Use, shape: tuple[int, int], rows: int, most: int = 0) -> Tile:
        """The tile for a number of rows. most: rows that a tile may have, a power of 2 from 16 on; 0: any number."""
        tiles = self.of(chip, weight, use, shape)
        fitting = [tile for tile in tiles if not most or tile.bt <= most]
        return next((tile for tile in fitting if rows <= tile.rows or not tile.rows), fitting[-1])

    def _look(self, chip: str, weight: str, use: Use, shape: tuple[int, int]) -> tuple[Tile, ...]:
        keys = list(_keys(chip, weight, use, shape))
        for table in self._tables:
            for key in keys:
                if key in table:
                    return table[key]
        raise LookupError(f"no tiles for a {weight} weight on {chip}")


def _keys(chip: str, weight: str, use: Use, shape: tuple[int, int]) -> Iterator[Key]:
    """What a group may be called, the closest first."""
    words = [weight]
    if weight == "dense" and use != "plain":
        words = [use, "dense"]
    elif weight not in ("dense", "float32"):
        words = [weight, "packed"]
    for name in dict.fromkeys((chip, alike(chip))):
        for word in (*words, "any"):
            yield Key(name, word, *shape)
            yield Key(name, word)


def weight_word(form: Form, compute: torch.dtype) -> str:
    """How tables call a weight: `float32`, `dense`, or a form such as `uint4`, `int8`, `uint5_int8` or `e2m1_e8m0`."""
    if compute is torch.float32:
        return "float32"
    if form.code == "dense":
        return "dense"
    bits = form.low_bits + form.high_bits
    counted = {"int": f"uint{bits}", "table": f"table{bits}"}
    name = counted.get(form.code, form.code)
    if form.sub != "none":
        name += f"_{form.sub}"
    elif form.scale != "plain":
        name += f"_{form.scale}"
    return name


@functools.cache
def shipped() -> Groups:
    """The lines of `product_tiles.txt`."""
    return read_tiles(FILE.read_text(encoding="utf-8"), FILE.name)


def tiles_with(path: str | None) -> Tiles:
    """The tables with a user's file in front; None: without one. Raises UserError."""
    if path is None:
        return Tiles(shipped())
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"table of tiles '{path}': cannot be read: {error}.") from error
    if len(text) > MOST_BYTES:
        raise UserError(f"table of tiles '{path}': longer than {MOST_BYTES} characters; give the file of a table.")
    return Tiles(read_tiles(text, path), shipped())


def segments_of(num_outputs: int, num_inputs: int) -> int:
    """Into how many segments the inputs of a weight are cut; the shape alone decides."""
    programs = -(-num_outputs // OUTPUTS)
    segments = 1
    while segments < MOST_SEGMENTS and programs * segments < PROGRAMS and num_inputs >= 2 * segments * SEGMENT_INPUTS:
        segments *= 2
    return segments
