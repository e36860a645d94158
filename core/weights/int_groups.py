"""Groups of 4- or 8-bit integers: GPTQ, AWQ, HQQ, GGUF blocks, compressed-tensors. Called by: quantization methods, kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from core.weights.canonical import CanonicalWeight, take_columns, whole_groups


def unpack_nibbles(values: Tensor) -> Tensor:
    """uint8 [N, K // 2] to the integers 0..15, one a byte: [N, K]; the low nibble is the even k."""
    pairs = torch.stack((values & 15, values >> 4), dim=-1)
    return pairs.reshape(values.shape[0], -1)


@dataclass(frozen=True, slots=True)
class IntGroups(CanonicalWeight):
    """Unsigned 4- or 8-bit integers in groups along K, with a scale and either a zero point or a minimum a group.

    W[n, k] = scale[n, k // group_size] * (value[n, k] - zero) + minimum[n, k // group_size]

    bits: of an integer, 4 or 8.
    group_size: divides K; a multiple of 16.
    values: uint8, [N, K] for 8 bits, [N, K // 2] for 4 bits (the low nibble is the even k).
    scale: float16 or float32, [N, K // group_size].
    minimum: None, or the dtype and shape of `scale`.
    zero: one integer for the whole weight (128 for signed 8-bit values, 8 for signed 4-bit, 0 with a minimum).
    """

    bits: int
    group_size: int
    values: Tensor
    scale: Tensor
    minimum: Tensor | None = None
    zero: int = 0

    @property
    def name(self) -> str:
        """`int4_groups` or `int8_groups`."""
        return f"int{self.bits}_groups"

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        n, num_bytes = self.values.shape
        return n, num_bytes * 8 // self.bits

    def unpacked(self) -> Tensor:
        """The stored integers, one a byte: uint8 [N, K]."""
        return self.values if self.bits == 8 else unpack_nibbles(self.values)

    def columns(self, index: Tensor | slice) -> Self:
        """Whole groups of columns."""
        columns, groups = whole_groups(index, self.shape[1], self.group_size, self.name)
        if self.bits == 4:
            columns = columns[::2] // 2  # a group is whole bytes
        minimum = None if self.minimum is None else take_columns(self.minimum, groups)
        values = take_columns(self.values, columns)
        scale = take_columns(self.scale, groups)
        return replace(self, values=values, scale=scale, minimum=minimum)

    def dequantize(self) -> Tensor:
        """W as float32 [N, K]."""
        n, k = self.shape
        num_groups = k // self.group_size
        w = self.unpacked().float().view(n, num_groups, self.group_size)
        if self.zero:
            w -= self.zero
        w *= self.scale.float().unsqueeze(-1)
        if self.minimum is not None:
            w += self.minimum.float().unsqueeze(-1)
        return w.view(n, k)
