"""Tile sizes of the attention kernel, by chip and head size.

Owns: the table, of tiles that spill no register (the GPU gate verifies it). Never does: depend on a step, since a row's
bits would then depend on its batch. Called by: `layer.py`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from core_kernels.triton.compiling.chips import INTERPRETER

VALUES: Final = 128
"""Value elements per program, unless the row says less; other programs handle the rest."""


class Tile(NamedTuple):
    """The work of one program.

    rows: queries, of all heads that share a key-value head.
    keys: a power of 2 up to 128.
    num_warps, num_stages: compiler options.
    values: maximum value elements per program.
    prompt_stages: stages of the tile with twice the rows and warps, for prompts; 0: there is no such tile.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    values: int = VALUES
    prompt_stages: int = 0


WIDTHS: Final = (64, 128, 256, 512)
"""Sizes of a key (or of a program's part of a value) up to which each row's tiles apply."""

EXACT = Tile(16, 32, 4, 1)
"""Tile for float32, which no chip's matrix units multiply without loss."""

WIDE_EXACT = Tile(16, 16, 8, 1)

AMPERE: Final = (
    Tile(64, 64, 4, 3, prompt_stages=3),
    Tile(64, 16, 8, 2),
    Tile(64, 16, 8, 2, values=64),
    Tile(64, 16, 8, 2),
)
HOPPER: Final = (  # for decoding, two programs fit a multiprocessor up to 256
    Tile(64, 64, 4, 3, prompt_stages=3),
    Tile(64, 64, 4, 3, prompt_stages=3),
    Tile(64, 32, 4, 2, prompt_stages=2),
    Tile(64, 16, 4, 2),
)
BLACKWELL: Final = (
    Tile(64, 64, 4, 3),
    Tile(64, 64, 8, 2),
    Tile(64, 32, 8, 2),
    Tile(64, 16, 8, 2, values=64),
)
SMALL: Final = (  # 99 KiB of shared memory
    Tile(64, 64, 4, 2),
    Tile(64, 32, 8, 2),
    Tile(64, 32, 8, 2),
    Tile(32, 16, 8, 2, values=64),
)
CDNA: Final = (  # 64 KiB
    Tile(64, 16, 4, 1),
    Tile(64, 16, 8, 1),
    Tile(64, 16, 8, 1),
    Tile(32, 16, 8, 1),
)
CHIPS: Final = {
    INTERPRETER: HOPPER,
    "sm_80": AMPERE,
    "sm_90": HOPPER,
    "sm_100": BLACKWELL,
    "sm_120": SMALL,
    "gfx942": CDNA,
}
"""Tiles by chip family, see `core_kernels.triton.compiling.chips`."""


def tile_of(chip: str, width: int, exact: bool) -> Tile:
    """Return the tile for heads of `width` numbers. exact: products of float32."""
    if exact and chip != INTERPRETER:
        return EXACT if width <= 128 else WIDE_EXACT
    rows = CHIPS[chip]
    for limit, tile in zip(WIDTHS, rows, strict=True):
        if width <= limit:
            return tile
    return rows[-1]


def doubled(tile: Tile) -> Tile:
    """Return the tile for prompts: a warp has as many rows as in `tile`, and sums their keys in the same order."""
    if not tile.prompt_stages:
        return tile
    return tile._replace(rows=2 * tile.rows, num_warps=2 * tile.num_warps, num_stages=tile.prompt_stages)
