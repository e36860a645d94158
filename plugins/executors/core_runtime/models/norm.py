"""A normalization with its weights.

Owns: the choice of the kernel that computes it, and of the weights of each row where adapters replace them. Never does:
allocate during a step without such adapters. Called by: the decoder and the mixers.
"""

from __future__ import annotations

from torch import Tensor

from core_runtime.layers.adapted_norms import NormAdapters
from core_runtime.layers.kernels import KernelSet
from core_runtime.specs.block_spec import NormSpec


class Norm:
    """One norm of a model.

    is_centred: whether it subtracts the mean (a layer norm).
    eps: number added to the mean square.
    weight: float32, with the family's offset added: [H], or [D], [heads, D] for heads; ones where the checkpoint has
        none.
    bias: tensor of the same shape, or None.
    adapters: adapters of the norm; None: the engine has none.
    """

    __slots__ = ("_kernels", "adapters", "bias", "eps", "is_centred", "weight")

    def __init__(self, kernels: KernelSet, spec: NormSpec, weight: Tensor, bias: Tensor | None = None) -> None:
        self._kernels = kernels
        self.eps = spec.eps
        self.is_centred = spec.kind == "layer"
        self.weight = weight
        self.bias = bias
        self.adapters: NormAdapters | None = None

    @property
    def is_adapted(self) -> bool:
        """Whether adapters of the current step replace its weights, which a call for several norms does not know of."""
        return self.adapters is not None and self.adapters.active

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Write the normalized x [T, H] to out [T, H]; out may be x. The rows are the step's first T tokens."""
        if self.adapters is None or not self.adapters.active:
            self._rows(x, self.weight, self.bias, out)
            return
        # Copied first, since out may be x.
        chosen = [(change, rows, x[rows]) for change, rows in self.adapters.chosen(len(x))]
        self._rows(x, self.weight, self.bias, out)
        for change, rows, own in chosen:
            self._rows(own, *self._with(change.weight, change.bias), own)
            out[rows] = own

    def of_rows(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """Write the normalized rows `rows` (int64 [R]) of x to out [R, H]. A row of x is the step's token of that number."""
        together = self._kernels.take_rms_norm
        if together is not None and not self.is_centred:
            together(x, rows, self.weight, self.eps, out)
        else:
            self._kernels.take_rows(x, rows, out)
            self._rows(out, self.weight, self.bias, out)
        if self.adapters is None or not self.adapters.active:
            return
        for change, chosen in self.adapters.chosen(len(rows), rows):
            own = x[rows[chosen]]
            self._rows(own, *self._with(change.weight, change.bias), own)
            out[chosen] = own

    def heads(self, x: Tensor) -> None:
        """Normalize the last axis of x [T, heads, D] in place. Rows of x may be strided."""
        if self.adapters is None or not self.adapters.active:
            self._heads(x, self.weight, self.bias)
            return
        chosen = [(change, rows, x[rows]) for change, rows in self.adapters.chosen(len(x))]
        self._heads(x, self.weight, self.bias)
        for change, rows, own in chosen:
            self._heads(own, *self._with(change.weight, change.bias))
            x[rows] = own

    def _with(self, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return an adapter's weight and bias, each the model's where the adapter has none."""
        return self.weight if weight is None else weight, self.bias if bias is None else bias

    def _rows(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
        if self.is_centred:
            self._kernels.layer_norm(x, weight, bias, self.eps, out)
        else:
            self._kernels.rms_norm(x, weight, self.eps, out)

    def _heads(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        if self.is_centred:
            self._kernels.layer_norm_heads(x, weight, bias, self.eps)
        else:
            self._kernels.rms_norm_heads(x, weight, self.eps)
