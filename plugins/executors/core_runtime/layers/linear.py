"""One linear layer of a model, possibly made of several parts that share their input.

Owns: how fused and separate parts become one output, and the place where adapters change it. Never does: quantize or repack
(kernels do).
Called by: the decoder.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from core_runtime.contracts import LinearKernel
from core_runtime.layers.adapted import LayerAdapters


class Linear:
    """Kernels side by side along N: one if all parts could be fused, more if their formats differ.

    adapters: adapters of the layer; None: the engine has none.
    """

    def __init__(self, kernels: Sequence[LinearKernel]) -> None:
        self.kernels = tuple(kernels)
        self.nbytes = sum(kernel.nbytes for kernel in kernels)
        self.in_features = kernels[0].shape[1]
        self.out_features = sum(kernel.shape[0] for kernel in kernels)
        self.single = kernels[0] if len(kernels) == 1 else None
        self.adapters: LayerAdapters | None = None

    @property
    def is_adapted(self) -> bool:
        """Whether adapters change the layer's outputs in the current step."""
        return self.adapters is not None and self.adapters.active

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`, changed by the step's adapters."""
        if self.adapters is not None and self.adapters.active:
            self.adapters.run(self.without_adapters, x, out, accumulate=accumulate)
        else:
            self.without_adapters(x, out, accumulate=accumulate)

    def without_adapters(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`."""
        if self.single is not None:
            self.single(x, out, accumulate=accumulate)
            return
        start = 0
        for kernel in self.kernels:
            stop = start + kernel.shape[0]
            kernel(x, out[:, start:stop], accumulate=accumulate)
            start = stop
