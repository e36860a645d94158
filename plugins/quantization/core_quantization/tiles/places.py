"""The order of integers and scales in tiles.

Owns: these orders. Never does: read a tensor's shape, or a declaration. Called by: the layout.

A row of words holds 16 inputs, for all outputs. Of 64 outputs, which are 4 tiles, 1024 integers follow one another:
first those of lane 0 of a warp, then those of lane 1, and so on to 31. Each lane has 32 of them: four runs of eight, of
two blocks of outputs and four inputs. Sources: the packers of Marlin (arXiv 2408.11743), QQQ (arXiv 2406.09904) and
compressed-tensors 0.9.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

TILE: Final = 16
"""Inputs, and outputs, of a tile."""
OUTPUTS: Final = 64
"""Outputs whose integers are mixed with one another."""
LANES: Final = 32
RUNS: Final = 4
NIBBLES: Final = (0, 2, 4, 6, 1, 3, 5, 7)
BYTES: Final = (0, 2, 1, 3)
ROWS_OF_CHANNELS: Final = (4, 0, 5, 1, 6, 2, 7, 3)
"""Which of eight (or four) integers in a row takes each place of a word."""


class Tiles(NamedTuple):
    """One order of integers in tiles.

    spread: whether the four inputs of a lane are two pairs, 8 inputs apart; else they are neighbours.
    across: whether the four runs of a lane are neighbouring outputs; else they are four tiles.
    words: which integers share a word.
    """

    spread: bool
    across: bool
    words: tuple[int, ...]

    def places(self) -> Tensor:
        """Return, for each of 1024 integers as stored, its place in 4 tiles of 16 inputs and 16 outputs: int64 [1024]."""
        lane = torch.arange(LANES).view(LANES, 1, 1, 1)
        run = torch.arange(RUNS).view(1, RUNS, 1, 1)
        block = torch.arange(2).view(1, 1, 2, 1)
        fourth = torch.arange(4).view(1, 1, 1, 4)
        pairs = 2 * (lane % 4) + fourth % 2 + 8 * (fourth // 2)
        row = pairs if self.spread else 4 * (lane % 4) + fourth
        column = lane // 4
        if self.across:
            tile, output = column // 2, 8 * (column % 2) + 4 * block + run
        else:
            tile, output = run, column + 8 * block
        found = (TILE * TILE * tile + TILE * row + output).expand(LANES, RUNS, 2, 4)
        return found.reshape(-1, len(self.words))[:, list(self.words)].flatten()

    def matrix(self, stored: Tensor, outputs: int) -> Tensor:
        """Return integers [inputs, outputs] of those stored, [inputs / 16, outputs * 16], in the same type."""
        count = stored.shape[0]
        mixed = stored.reshape(-1, TILE * OUTPUTS)
        tiles = torch.empty_like(mixed)
        tiles[:, self.places()] = mixed
        return tiles.view(count, outputs // TILE, TILE, TILE).permute(0, 2, 1, 3).reshape(count * TILE, outputs)


MARLIN: Final = Tiles(spread=True, across=False, words=NIBBLES)
SPARSE: Final = {4: Tiles(spread=True, across=True, words=NIBBLES), 8: Tiles(spread=True, across=True, words=BYTES)}
"""Bits of an integer → the order where two numbers of four are stored."""
QQQ_GROUPS: Final = Tiles(spread=False, across=False, words=NIBBLES)
QQQ_CHANNELS: Final = Tiles(spread=False, across=False, words=ROWS_OF_CHANNELS)

_EIGHTHS: Final = tuple(first + 8 * second for first in range(8) for second in range(8))
_PAIRS: Final = tuple(2 * first + pair for first in range(4) for pair in (0, 1, 8, 9, 16, 17, 24, 25))
_HALVES: Final = tuple(8 * first + second for first in range(8) for second in (0, 4, 1, 5, 2, 6, 3, 7))
SCALES_OF_GROUPS: Final = _EIGHTHS
SCALES_OF_ROWS: Final = _PAIRS
SPARSE_SCALES_OF_GROUPS: Final = _HALVES
"""For each stored scale of some neighbouring outputs, which of them it belongs to. Those of rows lie in order where two numbers
of four are stored."""


def in_order(scales: Tensor, places: tuple[int, ...]) -> Tensor:
    """Return scales [groups, N] in the order of the outputs."""
    mixed = scales.reshape(-1, len(places))
    found = torch.empty_like(mixed)
    found[:, list(places)] = mixed
    return found.view_as(scales)
