"""Signed 8-bit integers with one scale per row: W8A8 together with the activation scheme `int8_row`.

Never does: quantize. Called by: quantization methods, kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from core_runtime.weights.canonical import CanonicalWeight, take_columns


@dataclass(frozen=True, slots=True)
class Int8Channel(CanonicalWeight):
    """W[n, k] = scale[n] * values[n, k].

    values: int8 [N, K].
    scale: float32 [N, 1].
    """

    values: Tensor
    scale: Tensor

    name = "int8_channel"

    def __post_init__(self) -> None:
        """Validate the fields. Raises ValueError for other types or shapes."""
        wanted = (self.values.shape[0], 1)
        dtypes_fit = self.values.dtype is torch.int8 and self.scale.dtype is torch.float32
        if not dtypes_fit or self.scale.shape != wanted:
            raise ValueError(
                f"int8_channel got values {self.values.dtype} {tuple(self.values.shape)} and scale {self.scale.dtype} "
                f"{tuple(self.scale.shape)}; it needs int8 [N, K] and float32 [N, 1]"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Logical shape (N, K)."""
        return self.values.shape[0], self.values.shape[1]

    @property
    def group_size(self) -> int:
        """Number of inputs that share a scale: all of them."""
        return int(self.values.shape[1])

    def columns(self, index: Tensor | slice) -> Self:
        """Return any columns as a weight: the scale of a row applies to all its inputs."""
        return replace(self, values=take_columns(self.values, index))

    def dequantize(self) -> Tensor:
        """Return W as float32 [N, K]."""
        return self.values.float() * self.scale
