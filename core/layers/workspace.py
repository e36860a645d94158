"""The buffers of a step: allocated once for the largest step, so that addresses stay fixed and a forward can be captured.

Owns: named buffers. Never does: allocate during a step. Called by: models (they reserve and use buffers).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Named buffers of [max_rows, width]; `view` gives the first rows. Untouched pages cost no memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: dict[str, Tensor] = {}

    def reserve(self, name: str, rows: int, width: int, dtype: torch.dtype) -> None:
        """Make sure that buffer `name` has that size; only when a model is built."""
        self._buffers[name] = torch.empty(rows, width, dtype=dtype, device=self.device)

    def buffer(self, name: str) -> Tensor:
        """The whole buffer."""
        return self._buffers[name]

    def view(self, name: str, rows: int) -> Tensor:
        """The first `rows` rows of a buffer."""
        return self._buffers[name][:rows]

    @property
    def nbytes(self) -> int:
        """Bytes reserved (not necessarily touched)."""
        return sum(math.prod(buffer.shape) * buffer.element_size() for buffer in self._buffers.values())
