"""A normalization with its weights.

Owns: the choice of the kernel that computes it. Never does: allocate during a step. Called by: the decoder and the
mixers.
"""

from __future__ import annotations

from torch import Tensor

from core_runtime.layers.kernels import KernelSet
from core_runtime.specs.block_spec import NormSpec


class Norm:
    """One norm of a model.

    is_centred: whether it subtracts the mean (a layer norm).
    eps: number added to the mean square.
    weight: float32, with the family's offset added: [H], or [D], [heads, D] for heads; ones where the checkpoint has
        none.
    bias: tensor of the same shape, or None.
    """

    __slots__ = ("_kernels", "bias", "eps", "is_centred", "weight")

    def __init__(self, kernels: KernelSet, spec: NormSpec, weight: Tensor, bias: Tensor | None = None) -> None:
        self._kernels = kernels
        self.eps = spec.eps
        self.is_centred = spec.kind == "layer"
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Write the normalized x [T, H] to out [T, H]; out may be x."""
        if self.is_centred:
            self._kernels.layer_norm(x, self.weight, self.bias, self.eps, out)
        else:
            self._kernels.rms_norm(x, self.weight, self.eps, out)

    def of_rows(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """Write the normalized rows `rows` (int64 [R]) of x to out [R, H]."""
        together = self._kernels.take_rms_norm
        if together is not None and not self.is_centred:
            together(x, rows, self.weight, self.eps, out)
            return
        self._kernels.take_rows(x, rows, out)
        self(out, out)

    def heads(self, x: Tensor) -> None:
        """Normalize the last axis of x [T, heads, D] in place. Rows of x may be strided."""
        if self.is_centred:
            self._kernels.layer_norm_heads(x, self.weight, self.bias, self.eps)
        else:
            self._kernels.rms_norm_heads(x, self.weight, self.eps)
