"""The kernels: what is overridden here is served, everything else is refused and served by others."""

from __future__ import annotations

import torch
from torch import Tensor

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.weights.formats import CanonicalWeight, IntGroups


class GroupedLinear:
    """A matrix of shape (N, K), repacked once. Implements `core_runtime.contracts.LinearKernel`."""

    def __init__(self, weight: IntGroups, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.shape, self.nbytes = weight.shape, weight.nbytes

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`: one product a group, then its scale."""
        w, size = self.weight, self.weight.group_size
        total = torch.zeros(len(x), self.shape[0])
        for group in range(self.shape[1] // size):
            part = x[:, group * size : (group + 1) * size].float()
            integers = w.values[:, group * size : (group + 1) * size].float() - w.zero
            total += part @ integers.T * w.scale[:, group].float()
            if w.minimum is not None:
                total += part.sum(1, keepdim=True) * w.minimum[:, group].float()
        if self.bias is not None:
            total += self.bias
        if accumulate:
            out += total
        else:
            out.copy_(total)

    def rows(self, ids: Tensor, out: Tensor) -> None:
        """out[T, K] = W[ids]."""
        out.copy_(self.weight.rows(ids).dequantize())


class MyPluginKernels(ReferenceKernels):
    """Implements `core_runtime.contracts.Kernels`; the other operations are inherited and never asked for."""

    name = "my_plugin"
    numerics = "my_plugin-1"

    def supports(self, query: KernelQuery) -> list[Reason]:
        """8-bit groups with inputs as they are."""
        reasons = []
        if query.device != "cpu":
            reasons.append(Reason("device", "cpu", query.device))
        if query.op != "linear":
            reasons.append(Reason("op", "linear", query.op))
        if query.format != "int8_groups":
            reasons.append(Reason("format", "int8_groups", query.format))
        if query.activation != "none":
            reasons.append(Reason("activation", "none", query.activation))
        return reasons

    def linear(  # type: ignore[override]
        self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None
    ) -> GroupedLinear:
        """Prepare a matrix."""
        assert isinstance(weight, IntGroups)
        return GroupedLinear(weight, bias)
