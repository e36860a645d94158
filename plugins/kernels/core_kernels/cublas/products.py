"""Products of dense weights: cuBLAS where there are many rows, Triton where there are few.

Owns: linear layers, matrices of heads, and the rule that divides rows between both. Never does: choose among
providers. Called by: the provider, hence every layer.

Both read the same weight, so the choice costs no memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.api.specs import Activation
from core_kernels.triton.activation import activate_rows
from core_kernels.triton.products.heads import TritonHeads
from core_kernels.triton.products.linear import TritonLinear
from core_kernels.triton.products.tiles import Tiles
from core_runtime.weights.formats import CanonicalWeight


class CublasLinear(TritonLinear):
    """A dense weight of shape (N, K). Implements `core_runtime.contracts.LinearKernel`.

    early: see `TritonLinear`. few: most rows whose product is Triton's.
    """

    def __init__(
        self, weight: CanonicalWeight, activation: Activation, bias: Tensor | None, tiles: Tiles, early: bool, few: int
    ) -> None:
        super().__init__(weight, activation, bias, tiles, early)
        self.few = few
        self._row = None if bias is None else bias.to(self.weight.values.dtype)

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`."""
        values = self.weight.values
        if len(x) <= self.few or not is_served(x, values, out, self.activation):
            super().__call__(x, out, accumulate=accumulate)
            return
        columns = values.t()
        if out.dtype is not x.dtype:
            self._to_float32(x, columns, out, accumulate)
        elif accumulate:
            if self.bias is not None:
                out += self.bias
            out.addmm_(x, columns)
        elif self._row is not None:
            torch.addmm(self._row, x, columns, out=out)
        else:
            torch.mm(x, columns, out=out)

    def _gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        if len(x) <= self.few:
            super()._gated(x, activation, out)
            return
        both = x.new_empty(len(x), self.shape[0])
        self(x, both)
        activate_rows(both, activation, out, gated=True, early=self.early)

    def _to_float32(self, x: Tensor, columns: Tensor, out: Tensor, accumulate: bool) -> None:
        """Compute outputs that are wider than the inputs, such as logits."""
        if accumulate:
            out += torch.mm(x, columns, out_dtype=torch.float32)
        else:
            torch.mm(x, columns, out_dtype=torch.float32, out=out)
        if self.bias is not None:
            out += self.bias


class CublasHeads(TritonHeads):
    """A dense weight [H, N, K]. Implements `core_runtime.contracts.HeadsKernel`. few: see `CublasLinear`."""

    def __init__(self, weight: Tensor, activation: Activation, tiles: Tiles, early: bool, few: int) -> None:
        super().__init__(weight, activation, tiles, early)
        self.few = few

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Compute out[T, H, N] = x[T, H, K] @ W[H, N, K].T; rows and heads may be strided."""
        values = self.weight.values
        is_wide = out.dtype is not x.dtype
        if len(x) <= self.few or is_wide or not is_served(x, values, out, self.activation):
            super().__call__(x, out)
            return
        matrices = values.view(self.count, *self.weight.shape).transpose(1, 2)
        torch.bmm(x.transpose(0, 1), matrices, out=out.transpose(0, 1))


def is_served(x: Tensor, weight: Tensor, out: Tensor, activation: Activation) -> bool:
    """Whether cuBLAS multiplies these types as they are: one type for both operands, and that or float32 for outputs."""
    rounds = activation == "bf16" and x.dtype is not torch.bfloat16
    return x.dtype is weight.dtype and not rounds and out.dtype in (x.dtype, torch.float32)
