"""Linear layers: a prepared weight and its calls.

Owns: `TritonLinear`. Never does: choose among providers. Called by: the provider, hence every layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.api.specs import Activation
from core.weights.formats import CanonicalWeight
from core_plugins.kernels.triton.packed import in_stored_order, packed
from core_plugins.kernels.triton.product import multiply, take_weights


class TritonLinear:
    """A weight of shape (N, K), repacked once. Implements `core.plugin.contracts.LinearKernel`."""

    capturable = True

    def __init__(self, weight: CanonicalWeight, activation: Activation, bias: Tensor | None) -> None:
        self.weight = packed(weight)
        self.activation = activation
        self.bias = bias
        self.shape = weight.shape
        self.nbytes = self.weight.nbytes

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`; both in one rounding."""
        inputs = in_stored_order(x, self.weight)
        compute = torch.bfloat16 if self.activation == "bf16" else x.dtype
        multiply(inputs, self.weight, out, self.bias, compute=compute, accumulate=accumulate)

    def rows(self, ids: Tensor, out: Tensor) -> None:
        """out[T, K] = W[ids]."""
        order = self.weight.order
        if order is None:
            take_weights(self.weight, ids, out)
            return
        stored = torch.empty_like(out)
        take_weights(self.weight, ids, stored)
        out.index_copy_(1, order, stored)
