"""Matrices of which two numbers of four neighbouring inputs are stored, with their indices as one kind of GPU reads them.

Owns: the order of the indices, and the whole matrix. Never does: know an integer's bits. Called by: the layout.

Four inputs have an index of four bits: the place of the first stored number in its lower two, that of the second above.
Words of 16 bits hold those of 16 inputs. The words of a matrix [N, K / 16] lie in CUTLASS's order for sparse products:
columns in pairs, and within 64 rows the bits of a row's number are (5 4 3 2 1 0) exchanged for (1 5 4 3 0 2); of each
two by two words the two off the diagonal are exchanged.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

KEPT: Final = 2
OF: Final = 4
WORD_INPUTS: Final = 16
BAND: Final = 64
"""Rows within which words are exchanged."""


def whole(kept: Tensor, words: Tensor, absent: int) -> Tensor:
    """Return the matrix [N, K] of integers.

    kept: [N, K / 2], the stored ones. words: int16 [N * K / 16] in any shape. absent: integer that means zero.
    Raises ValueError for indices that name one place twice.
    """
    rows, half = kept.shape
    inputs = OF * half // KEPT
    indices = _indices(words.flatten(), rows, inputs // WORD_INPUTS)
    if bool((indices[..., 0] == indices[..., 1]).any()):
        raise ValueError("has indices ('meta') that name one of four inputs twice; the file is damaged")
    found = torch.full((rows, inputs // OF, OF), absent, dtype=kept.dtype)
    found.scatter_(-1, indices, kept.view(rows, inputs // OF, KEPT))
    return found.view(rows, inputs)


def _indices(words: Tensor, rows: int, columns: int) -> Tensor:
    """Return the places of the stored numbers, int64 [N, K / 4, 2] from 0 to 3."""
    stored = words[_places(rows, columns)].to(torch.int64) & 0xFFFF
    shifts = torch.arange(0, 16, 2)
    return ((stored.unsqueeze(-1) >> shifts) & 3).view(rows, -1, KEPT)


def _places(rows: int, columns: int) -> Tensor:
    """Return where the word of each row and column lies, int64 [N, K / 16]."""
    number = torch.arange(rows).unsqueeze(1)
    column = torch.arange(columns).unsqueeze(0)
    bits = [(number >> bit) & 1 for bit in range(6)]
    moved = number // BAND * BAND
    for place, bit in zip((5, 4, 3, 2, 1, 0), (1, 5, 4, 3, 0, 2), strict=True):
        moved = moved + (bits[bit] << place)
    off = (moved % 2 != column % 2).to(torch.int64)  # exchanged with its neighbour across the diagonal
    step = off * (1 - 2 * (moved % 2))
    row, column = moved + step, column - step
    return column // 2 * (2 * rows) + 2 * row + column % 2
