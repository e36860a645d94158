"""One linear layer of a model, possibly made of several parts that share their input.

Owns: how fused and separate parts become one output. Never does: quantize or repack (kernels do).
Called by: the decoder.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from core_runtime.contracts import LinearKernel


class Linear:
    """Kernels side by side along N: one if all parts could be fused, more if their formats differ."""

    def __init__(self, kernels: Sequence[LinearKernel]) -> None:
        self.kernels = tuple(kernels)
        self.nbytes = sum(kernel.nbytes for kernel in kernels)
        self.in_features = kernels[0].shape[1]
        self.out_features = sum(kernel.shape[0] for kernel in kernels)
        self.single = kernels[0] if len(kernels) == 1 else None

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`."""
        if self.single is not None:
            self.single(x, out, accumulate=accumulate)
            return
        start = 0
        for kernel in self.kernels:
            stop = start + kernel.shape[0]
            kernel(x, out[:, start:stop], accumulate=accumulate)
            start = stop
