"""The stored order of inputs of an act-order weight.

Owns: the order, as a value that is compared by its bytes. Never does: move an input. Called by: `IntGroups`, the kernels.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

assert sys.byteorder == "little", "the bytes of an order are those of int32 in memory"


@dataclass(frozen=True, slots=True)
class InputOrder:
    """The input that each stored column multiplies. Orders with the same bytes are equal.

    indices: int32 [K] as bytes, little-endian: each of 0..K-1 once.
    """

    indices: bytes = field(repr=False)

    @classmethod
    def of(cls, order: Tensor) -> Self:
        """Make an order from integers [K]; stored column j multiplies input order[j]. Raises ValueError unless each
        occurs once.
        """
        whole = order.to("cpu", torch.int64)
        expected = torch.arange(order.numel())
        if order.dim() != 1 or not torch.equal(whole.sort().values, expected):
            raise ValueError(
                f"an order of inputs of shape {tuple(order.shape)} does not name each of its {order.numel()} inputs once"
            )
        return cls(whole.to(torch.int32).numpy().tobytes())

    @property
    def count(self) -> int:
        """K, the number of inputs."""
        return len(self.indices) // 4

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return len(self.indices)

    def tensor(self) -> Tensor:
        """Return the order as int32 [K], a copy."""
        return torch.frombuffer(bytearray(self.indices), dtype=torch.int32)

    def restored(self, stored: Tensor) -> Tensor:
        """Return columns [N, K] in the order of the inputs, given those in the stored order."""
        inputs = self.tensor().to(stored.device, torch.int64)
        w = torch.empty_like(stored)
        w[:, inputs] = stored
        return w
