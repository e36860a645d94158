"""The canonical weight formats, and the reference `dequantize` of each.

Owns: the in-memory meaning of a packed weight, independent of any checkpoint format and of any chip.
Never does: read files, choose kernels, run a matrix product.
Called by: quantization methods (they build these), kernels (they `prepare` these), tests (the oracle).

Every format describes one logical matrix W of shape [N, K] (output features, input features; y = x @ W.T).
All quantized formats group along K; rows are independent, so rows can be permuted, concatenated and sharded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Dense:
    """A plain matrix. `weight` [N, K] in float32, float16 or bfloat16."""

    weight: Tensor

    name = "dense"

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return int(self.weight.nbytes)

    def dequantize(self) -> Tensor:
        """W as float32 [N, K]."""
        return self.weight.float()

    def rows(self, index: Tensor | slice) -> Dense:
        """The rows `index` (int64 [n], or a slice: a view) as a weight of their own."""
        return Dense(self.weight[index].contiguous())


@dataclass(frozen=True, slots=True)
class IntGroups:
    """Unsigned 4- or 8-bit integers in groups along K, with a scale and either a zero point or a minimum a group.

    W[n, k] = scale[n, k // group_size] * (value[n, k] - zero) + minimum[n, k // group_size]

    values:     uint8, [N, K] for 8 bits, [N, K // 2] for 4 bits (the low nibble is the even k).
    scale:      float16 or float32, [N, K // group_size].
    minimum:    None, or the dtype and shape of `scale`.
    zero:       one integer for the whole weight (128 for signed 8-bit values, 8 for signed 4-bit, 0 with a minimum).
    group_size: divides K; a multiple of 16.
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
        return self.values.shape[0], self.values.shape[1] * 8 // self.bits

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        extra = 0 if self.minimum is None else self.minimum.nbytes
        return int(self.values.nbytes + self.scale.nbytes + extra)

    def unpacked(self) -> Tensor:
        """The stored integers, one a byte: uint8 [N, K]."""
        if self.bits == 8:
            return self.values
        return torch.stack((self.values & 15, self.values >> 4), dim=-1).reshape(self.shape)

    def dequantize(self) -> Tensor:
        """W as float32 [N, K]."""
        n, k = self.shape
        w = self.unpacked().float().view(n, k // self.group_size, self.group_size)
        if self.zero:
            w -= self.zero
        w *= self.scale.float().unsqueeze(-1)
        if self.minimum is not None:
            w += self.minimum.float().unsqueeze(-1)
        return w.view(n, k)

    def rows(self, index: Tensor | slice) -> IntGroups:
        """The rows `index` (int64 [n], or a slice: a view) as a weight of their own."""
        minimum = None if self.minimum is None else self.minimum[index].contiguous()
        return IntGroups(
            self.bits,
            self.group_size,
            self.values[index].contiguous(),
            self.scale[index].contiguous(),
            minimum,
            self.zero,
        )


CanonicalWeight = Dense | IntGroups


def can_fuse(parts: Sequence[CanonicalWeight]) -> bool:
    """Whether `parts` can be concatenated along N without changing a stored value."""
    first = parts[0]
    if any(type(part) is not type(first) or part.shape[1] != first.shape[1] for part in parts):
        return False
    if isinstance(first, Dense):
        return all(isinstance(p, Dense) and p.weight.dtype == first.weight.dtype for p in parts)
    same = (first.bits, first.group_size, first.zero, first.scale.dtype, first.minimum is None)
    return all(
        isinstance(p, IntGroups) and (p.bits, p.group_size, p.zero, p.scale.dtype, p.minimum is None) == same
        for p in parts
    )


def fuse(parts: Sequence[CanonicalWeight]) -> CanonicalWeight:
    """Concatenate weights of equal format along N.

    Raises ValueError when their formats differ (`can_fuse` tells beforehand).
    """
    if len(parts) == 1:
        return parts[0]
    if not can_fuse(parts):
        raise ValueError(f"weights of different formats cannot be fused: {', '.join(p.name for p in parts)}")
    first = parts[0]
    if isinstance(first, Dense):
        return Dense(torch.cat([p.weight for p in parts if isinstance(p, Dense)]))
    groups = [p for p in parts if isinstance(p, IntGroups)]
    minima = [p.minimum for p in groups if p.minimum is not None]
    return IntGroups(
        first.bits,
        first.group_size,
        torch.cat([p.values for p in groups]),
        torch.cat([p.scale for p in groups]),
        torch.cat(minima) if minima else None,
        first.zero,
    )
