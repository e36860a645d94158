"""The choice of tiles for products: the lines of `product_tiles.txt`, preceded by those of a user's own file.

Owns: the choice of a line, and the number of segments of a weight's inputs. Never does: launch. Called by: the
products, the catalog, tuning.

Tiles affect speed, never the bits of a row: each output is one chain of sums along the inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import torch

from core.api.errors import UserError
from core_kernels.triton.compiling.chips import alike
from core_kernels.triton.products.packed import Form
from core_kernels.triton.products.tile_rows import MOST_BYTES, Groups, Key, Tile, read_tiles

FILE: Final = Path(__file__).with_name("product_tiles.txt")
SPLIT_ROWS = 64
"""Above this many rows, one program adds all segments of its outputs."""
MOST_SEGMENTS = 8
PROGRAMS = 256
"""Number of output blocks that keep a large chip busy without segments."""
OUTPUTS = 64
SEGMENT_INPUTS = 512
"""Minimum number of inputs per segment."""


Use = Literal["plain", "segments", "experts"]
"""Kind of product: plain, with one program per segment, or with rows routed to experts."""


class Tiles:
    """Tables of tiles; earlier ones take precedence."""

    def __init__(self, *tables: Groups) -> None:
        self._tables = tables
        self._found: dict[tuple[str, str, Use, int, int], tuple[Tile, ...]] = {}

    def of(self, chip: str, weight: str, use: Use, shape: tuple[int, int]) -> tuple[Tile, ...]:
        """Return the tiles for a weight of shape (N, K), smallest row counts first. weight: see `weight_word`."""
        key = chip, weight, use, *shape
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._look(chip, weight, use, shape)
        return found

    def tile_for(self, chip: str, weight: str, use: Use, shape: tuple[int, int], rows: int, most: int = 0) -> Tile:
        """Return the tile for a number of rows. most: limit on the rows of a tile, a power of 2 from 16 on; 0: none."""
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
    """Yield the possible keys of a group, the most specific first."""
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
    """Return the tables' name for a weight: `float32`, `dense`, or a form such as `uint4`, `int8`, `uint5_int8` or
    `e2m1_e8m0`; `floats8` where the inputs are 8-bit floats, too.
    """
    if compute is torch.float32:
        return "float32"
    if compute is torch.float8_e4m3fn:
        return "floats8"
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
    """Read `product_tiles.txt`."""
    return read_tiles(FILE.read_text(encoding="utf-8"), FILE.name)


def tiles_with(path: str | None) -> Tiles:
    """Return the tables, preceded by a user's file unless `path` is None. Raises UserError."""
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
    """Return the number of segments of a weight's inputs; it depends on the shape alone."""
    programs = -(-num_outputs // OUTPUTS)
    segments = 1
    while segments < MOST_SEGMENTS and programs * segments < PROGRAMS and num_inputs >= 2 * segments * SEGMENT_INPUTS:
        segments *= 2
    return segments
