"""Expert layers as grouped products.

Owns: `CublasExperts`, and the order of rows by expert. Never does: choose experts. Called by: the provider, hence
models.

Every (token, choice) pair is a row. Rows are sorted by expert, so that each expert multiplies one range of them; the
ends of the ranges stay on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core_kernels.cublas.products import is_served
from core_kernels.triton.combine import combine_rows
from core_kernels.triton.products.experts import TritonExperts
from core_kernels.triton.products.packed import Packed
from core_runtime.contracts import GatedOperation

ALIGNED = 8
"""Grouped products read 16 bytes at once: both sides of a matrix are multiples of eight numbers."""


class CublasExperts:
    """The experts of one layer. Implements `core_runtime.contracts.ExpertsKernel`.

    few: Triton's kernel of the layer. most: rows that it multiplies.
    gated: the gate between the two sides.
    """

    capturable = True

    def __init__(self, few: TritonExperts, most: int, gated: GatedOperation) -> None:
        self.few = few
        self.most = most
        self.gated = gated
        self.nbytes = few.nbytes
        sizes = (*few.gate_up.shape, *few.down.shape)
        values = few.gate_up.values
        is_aligned = all(size % ALIGNED == 0 for size in sizes)
        self._fits = is_aligned and values.dtype is torch.bfloat16 and has_grouped_products(values.device)

    def weights(self) -> list[Tensor]:
        """Return the tensors of the weight: the `MovesWeights` contract."""
        return self.few.weights()

    def use_weights(self, tensors: Sequence[Tensor]) -> None:
        """Read other tensors: the `MovesWeights` contract."""
        self.few.use_weights(tensors)

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute the weighted sum of each token's experts: the `ExpertsKernel` contract."""
        few = self.few
        if not self._fits or ids.numel() <= self.most or not is_served(x, few.gate_up.values, x, few.precision):
            few(x, ids, weights, out, accumulate=accumulate)
            return
        order, ends = by_expert(ids, few.count)
        both = self._product(x[order // ids.shape[1]], few.gate_up, ends)
        inner = x.new_empty(len(both), few.down.shape[1])
        self.gated(both, few.activation, inner)
        parts = torch.empty(len(both), few.down.shape[0], dtype=x.dtype, device=x.device)
        parts[order] = self._product(inner, few.down, ends)
        combine_rows(parts, ids, weights, out, few.count, accumulate, early=few.early)

    def _product(self, x: Tensor, weight: Packed, ends: Tensor) -> Tensor:
        """Return [R, N]: rows of x [R, K], each by the matrix of its expert."""
        matrices = weight.values.view(self.few.count, *weight.shape)
        return torch._grouped_mm(x, matrices.transpose(1, 2), offs=ends)


def has_grouped_products(device: torch.device) -> bool:
    """Whether a grouped product is one kernel: on CUDA before Hopper torch multiplies expert by expert, and waits for the
    device to know their rows.
    """
    return bool(device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0))


def by_expert(ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the rows in order of their experts, int64 [T * k], and the end of each expert's range, int32 [E].

    ids: int64 [T, k], below `count`.
    """
    sorted_ids, order = torch.sort(ids.flatten(), stable=True)
    experts = torch.arange(count, device=ids.device)
    return order, torch.searchsorted(sorted_ids, experts, right=True, out_int32=True)
