"""Expert layers as grouped products.

Owns: `CublasExperts`, and the order of rows by expert. Never does: choose experts. Called by: the provider, hence
models.

Every (token, choice) pair is a row. Rows are sorted by expert, so that each expert multiplies one range of them; the
ends of the ranges stay on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.api.specs import Activation
from core_kernels.cublas.products import is_served
from core_kernels.triton.combine import combine_rows
from core_kernels.triton.products.experts import TritonExperts
from core_kernels.triton.products.tiles import Tiles
from core_runtime.contracts import GatedOperation
from core_runtime.weights.experts import Experts

ALIGNED = 8
"""Grouped products read 16 bytes at once: both sides of a matrix are multiples of eight numbers."""


class CublasExperts(TritonExperts):
    """The experts of one layer. Implements `core_runtime.contracts.ExpertsKernel`.

    few: most rows whose products are Triton's.
    """

    def __init__(
        self,
        gate_up: Experts,
        down: Experts,
        activation: str,
        precision: Activation,
        gated: GatedOperation,
        gates_within: bool,
        tiles: Tiles,
        early: bool,
        few: int,
    ) -> None:
        super().__init__(gate_up, down, activation, precision, gated, gates_within, tiles, early)
        self.few = few
        sizes = (*self.gate_up.shape, *self.down.shape)
        self._fits = all(size % ALIGNED == 0 for size in sizes) and self.gate_up.values.dtype is torch.bfloat16

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute the weighted sum of each token's experts: the `ExpertsKernel` contract."""
        values = self.gate_up.values
        if not self._fits or ids.numel() <= self.few or not is_served(x, values, x, self.precision):
            super().__call__(x, ids, weights, out, accumulate=accumulate)
            return
        order, ends = by_expert(ids, self.count)
        both = self._product(x[order // ids.shape[1]], self.gate_up.values, self.gate_up.shape, ends)
        inner = x.new_empty(len(both), self.down.shape[1])
        self.gated(both, self.activation, inner)
        sorted_parts = self._product(inner, self.down.values, self.down.shape, ends)
        parts = torch.empty_like(sorted_parts)
        parts[order] = sorted_parts
        combine_rows(parts, ids, weights, out, self.count, accumulate, early=self.early)

    def _product(self, x: Tensor, values: Tensor, shape: tuple[int, int], ends: Tensor) -> Tensor:
        """Return [R, N]: rows of x [R, K], each by the matrix of its expert."""
        matrices = values.view(self.count, *shape)
        return torch._grouped_mm(x, matrices.transpose(1, 2), offs=ends)


def by_expert(ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the rows in order of their experts, int64 [T * k], and the end of each expert's range, int32 [E].

    ids: int64 [T, k], below `count`.
    """
    sorted_ids, order = torch.sort(ids.flatten(), stable=True)
    experts = torch.arange(count, device=ids.device)
    return order, torch.searchsorted(sorted_ids, experts, right=True, out_int32=True)
