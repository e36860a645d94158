"""Linear layers: a prepared weight and its products.

Owns: `TritonLinear`. Never does: choose among providers. Called by: the provider, hence every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from core.api.specs import Activation
from core_kernels.triton.activation import Gate, gate_of
from core_kernels.triton.embedding import take_weights
from core_kernels.triton.products.int8 import MOST_INPUTS, multiply_int8
from core_kernels.triton.products.packed import in_stored_order, packed
from core_kernels.triton.products.product import GATES, counted, holds_gate, multiply
from core_kernels.triton.products.rounding import encoded_rows, groups_of, inputs_of
from core_kernels.triton.products.tiles import Tiles
from core_runtime.contracts import ActivatedLinear
from core_runtime.weights.formats import CanonicalWeight, Int8Channel


class TritonLinear:
    """A weight of shape (N, K), repacked once. Implements `core_runtime.contracts.LinearKernel` and `HasGated`.

    tiles: tile tables of the products. early: whether launches may begin before the previous ones have ended.
    """

    capturable = True
    features = GATES

    def __init__(
        self, weight: CanonicalWeight, activation: Activation, bias: Tensor | None, tiles: Tiles, early: bool
    ) -> None:
        self.weight = counted(packed(weight))
        self.activation = activation
        self.groups = groups_of(weight, activation)
        self.bias = bias
        self.tiles = tiles
        self.early = early
        self.shape = weight.shape
        self.nbytes = self.weight.nbytes

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`, with a single rounding."""
        self._multiply(x, out, accumulate=accumulate)

    def weights(self) -> list[Tensor]:
        """Return the tensors of the weight: the `MovesWeights` contract."""
        return list(self.weight.movable.values())

    def use_weights(self, tensors: Sequence[Tensor]) -> None:
        """Read other tensors: the `MovesWeights` contract."""
        self.weight = self.weight.over(tensors)

    @property
    def gated(self) -> ActivatedLinear | None:
        """Product and gate in one launch, with the bits of two; None where the shape does not allow it."""
        return self._gated if holds_gate(self.weight) else None

    def _gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        self._multiply(x, out, gate=gate_of(activation))

    def _multiply(self, x: Tensor, out: Tensor, *, accumulate: bool = False, gate: Gate | None = None) -> None:
        inputs, x_scale = inputs_of(in_stored_order(x, self.weight), self.groups, self.activation)
        compute = torch.bfloat16 if self.activation == "bf16" else x.dtype
        how: dict[str, Any] = {"compute": compute, "tiles": self.tiles, "early": self.early}
        multiply(inputs, self.weight, out, self.bias, accumulate=accumulate, x_scale=x_scale, gate=gate, **how)

    def rows(self, ids: Tensor, out: Tensor) -> None:
        """Gather out[T, K] = W[ids]."""
        order = self.weight.order
        if order is None:
            take_weights(self.weight, ids, out, early=self.early)
            return
        stored = torch.empty_like(out)
        take_weights(self.weight, ids, stored, early=self.early)
        out.index_copy_(1, order, stored)


class Int8Linear(TritonLinear):
    """A linear layer of 8-bit integers whose inputs are also quantized: `int8_channel` with `int8_row`."""

    gated = None

    def __init__(self, weight: Int8Channel, bias: Tensor | None, tiles: Tiles, early: bool) -> None:
        super().__init__(weight, "int8_row", bias, tiles, early)
        self._view()

    def use_weights(self, tensors: Sequence[Tensor]) -> None:
        """Read other tensors: the `MovesWeights` contract."""
        super().use_weights(tensors)
        self._view()

    def _view(self) -> None:
        assert self.weight.scale is not None, "the format has a scale a row"
        self._values = self.weight.values.view(torch.int8)
        self._scale = self.weight.scale.flatten()

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`, quantizing x first."""
        codes, scales = encoded_rows(x)
        multiply_int8(codes, scales, self._values, self._scale, out, self.bias, accumulate=accumulate)


def linear_of(
    weight: CanonicalWeight, activation: Activation, bias: Tensor | None, tiles: Tiles, early: bool = False
) -> TritonLinear:
    """Build the linear kernel of a weight."""
    if isinstance(weight, Int8Channel) and activation == "int8_row" and weight.shape[1] <= MOST_INPUTS:
        return Int8Linear(weight, bias, tiles, early)
    return TritonLinear(weight, activation, bias, tiles, early)
