"""The format of plain matrices. Never does: change a value. Called by: loading, kernels, tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from core_runtime.weights.canonical import CanonicalWeight, take_columns


@dataclass(frozen=True, slots=True)
class Dense(CanonicalWeight):
    """A weight that is stored as a plain matrix.

    weight: [N, K] in float32, float16 or bfloat16.
    """

    weight: Tensor

    name = "dense"

    @property
    def shape(self) -> tuple[int, int]:
        """Logical shape (N, K)."""
        return self.weight.shape[0], self.weight.shape[1]

    def columns(self, index: Tensor | slice) -> Self:
        """Return any columns as a weight."""
        return replace(self, weight=take_columns(self.weight, index))

    def dequantize(self) -> Tensor:
        """Return W as float32 [N, K]."""
        return self.weight.float()
