"""Attention matrices with one matrix per head.

Owns: two implementations: one linear kernel per head, or one batched product. Never does: choose between them
(`KernelSet.heads` does). Called by: latent attention, on both sides of its backend.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core_runtime.contracts import LinearKernel, is_recordable


class LinearHeads:
    """out[T, H, N] = x[T, H, K] @ W[H, N, K].T with the linear kernel of each head."""

    def __init__(self, kernels: Sequence[LinearKernel]) -> None:
        self.kernels = tuple(kernels)
        self.nbytes = sum(kernel.nbytes for kernel in kernels)
        self.capturable = all(is_recordable(kernel) for kernel in kernels)

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Compute one head after the other."""
        inputs = x.unbind(1)
        outputs = out.unbind(1)
        for kernel, rows, into in zip(self.kernels, inputs, outputs, strict=True):
            kernel(rows, into)


class BatchedHeads:
    """All heads in one batched product of torch.

    weight: [H, N, K].
    rounded: whether inputs are rounded to bfloat16 first.
    """

    def __init__(self, weight: Tensor, rounded: bool) -> None:
        self.weight = weight
        self.rounded = rounded
        self.nbytes = weight.nbytes

    def weights(self) -> list[Tensor]:
        """Return the matrices: the `MovesWeights` contract."""
        return [self.weight]

    def use_weights(self, tensors: Sequence[Tensor]) -> None:
        """Read other matrices: the `MovesWeights` contract."""
        (self.weight,) = tensors

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Compute all heads at once, in the wider of both types unless inputs are rounded."""
        if self.rounded:
            x = x.bfloat16()
        by_head = x.transpose(0, 1)
        matrices = self.weight.to(x.dtype).transpose(1, 2)
        product = torch.matmul(by_head, matrices)
        out.copy_(product.transpose(0, 1))
