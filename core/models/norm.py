"""A normalization with its weights.

Owns: which kernel computes it. Never does: allocate during a step. Called by: the decoder and the mixers.
"""

from __future__ import annotations

from torch import Tensor

from core.api.block_spec import NormSpec
from core.layers.kernels import KernelSet


class Norm:
    """One norm of a model.

    weight: float32, with the family's offset added: [H], or [D], [heads, D] for heads; ones where the checkpoint has none.
    bias: of the same shape, or None.
    """

    __slots__ = ("_eps", "_kernels", "_layer", "bias", "weight")

    def __init__(self, kernels: KernelSet, spec: NormSpec, weight: Tensor, bias: Tensor | None = None) -> None:
        self._kernels = kernels
        self._eps = spec.eps
        self._layer = spec.kind == "layer"
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """out[T, H] = the normalized x [T, H]; out may be x."""
        if self._layer:
            self._kernels.layer_norm(x, self.weight, self.bias, self._eps, out)
        else:
            self._kernels.rms_norm(x, self.weight, self._eps, out)

    def heads(self, x: Tensor) -> None:
        """In place over the last axis of x [T, heads, D], whose rows may be strided."""
        if self._layer:
            self._kernels.layer_norm_heads(x, self.weight, self.bias, self._eps)
        else:
            self._kernels.rms_norm_heads(x, self.weight, self._eps)
