"""The numbers that share a scale: a matrix, a row, a group or a block. Torch-free.

Owns: the resulting shapes of scales. Never does: know a method. Called by: declarations, layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from core_quantization.declared.stored import a_row, one_number


@dataclass(frozen=True, slots=True)
class Shares:
    """The scope of one scale: the whole matrix, a row, a group of a row's inputs, or a block of rows and inputs.

    by: choice among these.
    group_size: inputs of a group, else 0.
    block: (rows, inputs) of a block, else None.
    """

    by: Literal["matrix", "row", "group", "block"]
    group_size: int = 0
    block: tuple[int, int] | None = None

    def width(self, inputs: int) -> int:
        """Return the inputs of a row that share a scale; a block may be wider than the row."""
        if self.block is not None:
            return self.block[1]
        return self.group_size or inputs

    def shapes(self, shape: tuple[int, int]) -> list[tuple[int, ...]]:
        """Return the shapes that the scales of a matrix [N, K] may have."""
        rows, inputs = shape
        if self.by == "matrix":
            return one_number()
        if self.by == "row":
            return a_row(rows)
        height = 1 if self.block is None else self.block[0]
        return [(-(-rows // height), -(-inputs // self.width(inputs)))]
