"""Reference kernels that compute one row at a time, so that the bits of a row depend on nothing but the row.

Owns: the meaning of `--numerics reference` for operations in plain torch. Never does: be fast.
Called by: the worker, which puts them after all other providers.

A library may sum in another order, or take another path at a vector's tail, when a matrix has more rows or begins at
another address. Here each product and each function sees one row of the same shape, at an aligned address.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from core.api.specs import Activation, RoutingSpec
from core_runtime.contracts import HeadsKernel
from core_runtime.layers.heads import LinearHeads
from core_runtime.layers.reference import FEATURES, ReferenceKernels, ReferenceLinear
from core_runtime.weights.canonical import moved_into
from core_runtime.weights.formats import CanonicalWeight, Dense
from core_runtime.weights.int_groups import FEATURES as WEIGHT_FEATURES


class RowLinear(ReferenceLinear):
    """A linear kernel that multiplies one row at a time, in float32; inputs are rounded as in the reference."""

    def _product(self, x: Tensor, part: Tensor) -> Tensor:
        wide = part.float()
        out = wide.new_empty(x.shape[0], wide.shape[0])
        for index, row in enumerate(x.split(1)):
            alone = _aligned(row.float())
            out[index] = F.linear(alone, wide)[0]
        return out


class RowKernels(ReferenceKernels):
    """Reference kernels that run row by row wherever bits could depend on other rows; the others are exact anyway."""

    name = "reference_rows"
    features = FEATURES | WEIGHT_FEATURES
    numerics = f"torch-rows-{torch.__version__.split('+')[0]}"

    def linear(
        self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None, into: Tensor | None = None
    ) -> RowLinear:
        """Keep the weight as it is. into: memory for a copy of it."""
        held = weight if into is None else moved_into(weight, into)
        return RowLinear(held, activation, bias)

    def heads(self, weight: Tensor, activation: Activation) -> HeadsKernel:
        """Make a linear kernel per head, which multiplies row by row."""
        kernels = [self.linear(Dense(one), activation=activation) for one in weight]
        return LinearHeads(kernels)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Normalize row by row; x and out [T, H] or [T, heads, D]."""
        inputs = x.split(1)
        outputs = out.split(1)
        for row, into in zip(inputs, outputs, strict=True):
            super().rms_norm(_aligned(row), weight, eps, into)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
        """Normalize row by row; x and out [T, H] or [T, heads, D]."""
        inputs = x.split(1)
        outputs = out.split(1)
        for row, into in zip(inputs, outputs, strict=True):
            super().layer_norm(_aligned(row), weight, bias, eps, into)

    def activate(self, x: Tensor, activation: str, out: Tensor) -> None:
        """Apply the activation row by row."""
        inputs = x.split(1)
        outputs = out.split(1)
        for row, into in zip(inputs, outputs, strict=True):
            super().activate(_aligned(row), activation, into)

    def gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        """Apply the gated activation row by row."""
        inputs = x.split(1)
        outputs = out.split(1)
        for row, into in zip(inputs, outputs, strict=True):
            super().gated(_aligned(row), activation, into)

    def soft_cap(self, x: Tensor, cap: float) -> None:
        """Apply the soft cap row by row."""
        for row in x.split(1):
            super().soft_cap(row, cap)

    def route(self, logits: Tensor, routing: RoutingSpec, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        """Choose experts row by row."""
        rows = logits.split(1)
        all_ids = ids.split(1)
        all_weights = weights.split(1)
        for row, row_ids, row_weights in zip(rows, all_ids, all_weights, strict=True):
            super().route(_aligned(row), routing, bias, row_ids, row_weights)


def _aligned(row: Tensor) -> Tensor:
    """Copy a row to an address that the allocator aligns."""
    return row.clone(memory_format=torch.contiguous_format)
