"""What shares a scale. Torch-free.

Owns: the shapes of scales that follow. Never does: know a method. Called by: declarations, layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from core_quantization.declared.stored import a_row, one_number


@dataclass(frozen=True, slots=True)
class Shares:
    """One scale belongs to the whole matrix, to a row, to a group of a row's inputs, or to a block of rows and inputs.

    by: which of these.
    group_size: inputs of a group, else 0.
    block: (rows, inputs) of a block, else None.
    """

    by: Literal["matrix", "row", "group", "block"]
    group_size: int = 0
    block: tuple[int, int] | None = None

    def width(self, inputs: int) -> int:
        """Inputs of a row that share a scale; those of a block may be more than there are."""
        if self.block is not None:
            return self.block[1]
        return self.group_size or inputs

    def shapes(self, shape: tuple[int, int]) -> list[tuple[int, ...]]:
        """Shapes that the scales of a matrix [N, K] may have."""
        rows, inputs = shape
        if self.by == "matrix":
            return one_number()
        if self.by == "row":
            return a_row(rows)
        height = 1 if self.block is None else self.block[0]
        return [(-(-rows // height), -(-inputs // self.width(inputs)))]
