"""Products of dense weights: cuBLAS where there are many rows, Triton where there are few.

Owns: linear layers, matrices of heads, and the rule that divides rows between both. Never does: choose among
providers. Called by: the provider, hence every layer.

Both read the same weight, so the choice costs no memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core.api.specs import Activation
from core_kernels.triton.products.heads import TritonHeads
from core_kernels.triton.products.linear import TritonLinear
from core_runtime.contracts import ActivatedLinear, GatedOperation, HasGated
from core_runtime.layers.features import features_of


class CublasLinear:
    """A dense weight of shape (N, K). Implements `core_runtime.contracts.LinearKernel`, and `HasGated` where Triton does.

    few: Triton's kernel of the weight. most: rows that it multiplies.
    gate: Triton's gate, for products of more rows.
    """

    capturable = True

    def __init__(self, few: TritonLinear, most: int, gate: GatedOperation) -> None:
        self.few = few
        self.most = most
        self.gate = gate
        self.shape, self.nbytes = few.shape, few.nbytes
        self.features = features_of(few)
        self._weight = few.weight.values
        self._bias = None if few.bias is None else few.bias.to(self._weight.dtype)

    def weights(self) -> list[Tensor]:
        """Return the tensors of the weight: the `MovesWeights` contract."""
        return self.few.weights()

    def use_weights(self, tensors: Sequence[Tensor]) -> None:
        """Read other tensors: the `MovesWeights` contract."""
        self.few.use_weights(tensors)
        self._weight = self.few.weight.values

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`."""
        if len(x) <= self.most or not is_served(x, self._weight, out, self.few.activation):
            self.few(x, out, accumulate=accumulate)
            return
        columns = self._weight.t()
        if out.dtype is not x.dtype:
            self._widened(x, columns, out, accumulate)
        elif accumulate:
            if self._bias is not None:
                out += self._bias
            out.addmm_(x, columns)
        elif self._bias is not None:
            torch.addmm(self._bias, x, columns, out=out)
        else:
            torch.mm(x, columns, out=out)

    def rows(self, ids: Tensor, out: Tensor) -> None:
        """Gather out[T, K] = W[ids]."""
        self.few.rows(ids, out)

    @property
    def gated(self) -> ActivatedLinear | None:
        """Product and gate in one call: for few rows as Triton fuses them, for more one after the other."""
        if self.most == 0 or not isinstance(self.few, HasGated) or self.few.gated is None:
            return None
        return self._gated

    def _gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        assert isinstance(self.few, HasGated) and self.few.gated is not None, "`gated` is None otherwise"
        if len(x) <= self.most:
            self.few.gated(x, activation, out)
            return
        both = x.new_empty(len(x), self.shape[0])
        self(x, both)
        self.gate(both, activation, out)

    def _widened(self, x: Tensor, columns: Tensor, out: Tensor, accumulate: bool) -> None:
        """Compute outputs that are wider than the inputs, such as logits."""
        if accumulate:
            out += torch.mm(x, columns, out_dtype=torch.float32)
        else:
            torch.mm(x, columns, out_dtype=torch.float32, out=out)
        if self.few.bias is not None:
            out += self.few.bias


class CublasHeads:
    """A dense weight [H, N, K]. Implements `core_runtime.contracts.HeadsKernel`. few, most: see `CublasLinear`."""

    capturable = True

    def __init__(self, few: TritonHeads, most: int) -> None:
        self.few = few
        self.most = most
        self.nbytes = few.nbytes

    def weights(self) -> list[Tensor]:
        """Return the tensors of the weight: the `MovesWeights` contract."""
        return self.few.weights()

    def use_weights(self, tensors: Sequence[Tensor]) -> None:
        """Read other tensors: the `MovesWeights` contract."""
        self.few.use_weights(tensors)

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Compute out[T, H, N] = x[T, H, K] @ W[H, N, K].T; rows and heads may be strided."""
        weight = self.few.weight
        is_wide = out.dtype is not x.dtype
        if len(x) <= self.most or is_wide or not is_served(x, weight.values, out, self.few.activation):
            self.few(x, out)
            return
        matrices = weight.values.view(self.few.count, *weight.shape).transpose(1, 2)
        torch.bmm(x.transpose(0, 1), matrices, out=out.transpose(0, 1))


def is_served(x: Tensor, weight: Tensor, out: Tensor, activation: Activation) -> bool:
    """Whether cuBLAS multiplies these types as they are: one type for both operands, and that or float32 for outputs."""
    rounds = activation == "bf16" and x.dtype is not torch.bfloat16
    return x.dtype is weight.dtype and not rounds and out.dtype in (x.dtype, torch.float32)
