"""8-bit floating point: e4m3 (no infinities, largest 448) and e5m2, as in Micikevicius et al. 2022, arXiv 2209.05433.

Owns: the format, and the conversion of tensor, channel and block scales to scales per row. Never does: quantize.
Called by: quantization methods, kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from core_runtime.weights.canonical import NARROW_FLOATS, CanonicalWeight, take_columns, whole_groups

NAMES = {torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2"}
LARGEST = {torch.float8_e4m3fn: 0x7E, torch.float8_e5m2: 0x7B}  # bits of the largest finite number


@dataclass(frozen=True, slots=True)
class FP8(CanonicalWeight):
    """W[n, k] = scale[n, k // group_size] * values[n, k].

    values: float8_e4m3fn or float8_e5m2 [N, K].
    scale: float32 [N, ceil(K / group_size)]. A scale of many rows is repeated for each row, so that rows stay independent.
    group_size: inputs that share a scale: K, or the width of a block; the last group may be smaller.
    """

    values: Tensor
    scale: Tensor
    group_size: int

    def __post_init__(self) -> None:
        """Validate the fields. Raises ValueError for other types or shapes."""
        if self.values.dtype not in NARROW_FLOATS or self.values.dim() != 2:
            raise ValueError(
                f"fp8 got values {self.values.dtype} {tuple(self.values.shape)}; it needs float8_e4m3fn or float8_e5m2 [N, K]"
            )
        n, k = self.values.shape
        wanted = (n, -(-k // self.group_size))
        if self.scale.dtype is not torch.float32 or self.scale.shape != wanted:
            raise ValueError(
                f"fp8 got scale {self.scale.dtype} {tuple(self.scale.shape)} for a weight of shape ({n}, {k}) and groups "
                f"of {self.group_size}; it needs float32 {wanted}"
            )

    @classmethod
    def from_scale(cls, values: Tensor, scale: Tensor, block: tuple[int, int] | None = None) -> Self:
        """Make a weight of values [N, K] with one scale ([] or [1]), one per row ([N] or [N, 1]), or one per block.

        block: (rows, columns) of a block, for scale [ceil(N / rows), ceil(K / columns)].
        """
        n, k = values.shape
        scale = scale.float()
        if block is not None:
            rows, columns = block
            wanted = (-(-n // rows), -(-k // columns))
            if tuple(scale.shape) != wanted:
                raise ValueError(
                    f"fp8 got scale {tuple(scale.shape)} for a weight of shape ({n}, {k}) in blocks of {rows} x {columns}; "
                    f"it needs {wanted}"
                )
            by_row = scale.repeat_interleave(rows, 0)[:n]
            return cls(values, by_row.contiguous(), columns)
        if scale.numel() not in (1, n):
            raise ValueError(
                f"fp8 got scale {tuple(scale.shape)} for a weight of shape ({n}, {k}); it needs one, or one a row"
            )
        by_row = scale.reshape(-1, 1).expand(n, 1)
        return cls(values, by_row.contiguous(), k)

    @property
    def name(self) -> str:
        """Format name: `fp8_e4m3` or `fp8_e5m2`."""
        return NAMES[self.values.dtype]

    @property
    def shape(self) -> tuple[int, int]:
        """Logical shape (N, K)."""
        return self.values.shape[0], self.values.shape[1]

    def columns(self, index: Tensor | slice) -> Self:
        """Return whole blocks of columns as a weight; any columns if a row has one scale."""
        if self.scale.shape[1] == 1:
            values = take_columns(self.values, index)
            return replace(self, values=values, group_size=values.shape[1])
        columns, groups = whole_groups(index, self.shape[1], self.group_size, self.name)
        values = take_columns(self.values, columns)
        return replace(self, values=values, scale=take_columns(self.scale, groups))

    def dequantize(self) -> Tensor:
        """Return W as float32 [N, K]."""
        k = self.values.shape[1]
        by_input = self.scale.repeat_interleave(self.group_size, 1)[:, :k]
        return self.values.float() * by_input

    def problem(self) -> str | None:
        """Return an error message for scales or values that are not finite."""
        magnitudes = self.values.view(torch.uint8) & 0x7F
        if magnitudes.numel() and int(magnitudes.max()) > LARGEST[self.values.dtype]:
            return f"a {self.name} weight of shape {self.shape} holds values that are not finite"
        return CanonicalWeight.problem(self)
