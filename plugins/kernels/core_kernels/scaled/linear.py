"""Linear layers of 8-bit floats whose inputs are rounded to 8-bit floats, too.

Owns: the libraries' calls. Never does: choose among providers. Called by: the provider,
hence every layer.

Few rows are Triton's, whose kernel reads the weight once. The signatures are those of torch 2.11
to 2.13 (`torch._scaled_mm`), of deep-gemm 1.0.0 (`gemm_fp8_fp8_bf16_nt`) and of DeepGEMM 2 (`fp8_gemm_nt`).
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from core_kernels.scaled.limits import BLOCK
from core_kernels.triton.products.rounding import encoded_rows
from core_runtime.contracts import LinearKernel, MovesWeights
from core_runtime.weights.formats import FP8


class ScaledLinear(ABC):
    """A weight of shape (N, K). Implements `core_runtime.contracts.LinearKernel`; subclasses multiply.

    few: Triton's kernel of the weight. most: rows that it multiplies.
    """

    capturable = True

    def __init__(self, weight: FP8, bias: Tensor | None, few: LinearKernel, most: int) -> None:
        self.few = few
        self.most = most
        self.values = weight.values
        self.scale = self._own_scale(weight)
        self.bias = bias
        self.shape = weight.shape
        # Triton reads the same bytes: weights of whole units of 16 inputs are kept as they are.
        self.nbytes = few.nbytes + self.scale.nbytes

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`, rounding x first."""
        if len(x) <= self.most:
            self.few(x, out, accumulate=accumulate)
            return
        codes, scales = encoded(x)
        product = self._product(codes, scales)
        if self.bias is not None:
            product += self.bias
        if accumulate:
            out += product
        else:
            out.copy_(product)

    def weights(self) -> list[Tensor]:
        """Return the tensors of the weight, except the scales of the library: the `MovesWeights` contract."""
        assert isinstance(self.few, MovesWeights), "Triton's kernels are"
        held = self.few.weights()
        return held if self._is_shared(held) else [*held, self.values]

    def use_weights(self, tensors: Sequence[Tensor]) -> None:
        """Read other tensors: the `MovesWeights` contract."""
        assert isinstance(self.few, MovesWeights), "Triton's kernels are"
        held = self.few.weights()
        values = tensors[0] if self._is_shared(held) else tensors[-1]
        self.few.use_weights(tensors[: len(held)])
        self.values = values.view(self.values.dtype).view(self.values.shape)

    def _is_shared(self, held: Sequence[Tensor]) -> bool:
        """Whether Triton's kernel reads the same bytes. held: its tensors, the codes first."""
        return bool(held[0].data_ptr() == self.values.data_ptr() and held[0].nbytes == self.values.nbytes)

    def rows(self, ids: Tensor, out: Tensor) -> None:
        """Gather out[T, K] = W[ids]."""
        self.few.rows(ids, out)

    @abstractmethod
    def _own_scale(self, weight: FP8) -> Tensor:
        """Return the scales as the library reads them."""

    @abstractmethod
    def _product(self, codes: Tensor, scales: Tensor) -> Tensor:
        """Return bfloat16 [T, N] of codes [T, K] in e4m3 and their scales, float32 [T, 1]."""


class RowScaled(ScaledLinear):
    """A weight with one scale a row, multiplied by torch."""

    def _own_scale(self, weight: FP8) -> Tensor:
        return weight.scale.t().contiguous()

    def _product(self, codes: Tensor, scales: Tensor) -> Tensor:
        return torch._scaled_mm(
            codes, self.values.t(), scale_a=scales, scale_b=self.scale, out_dtype=torch.bfloat16, use_fast_accum=False
        )


class BlockScaled(ScaledLinear):
    """A weight with a scale for each block of 128 x 128, multiplied by DeepGEMM."""

    def __init__(self, weight: FP8, bias: Tensor | None, few: LinearKernel, most: int) -> None:
        super().__init__(weight, bias, few, most)
        module: Any = importlib.import_module("deep_gemm")
        self._multiply = getattr(module, "fp8_gemm_nt", None) or module.gemm_fp8_fp8_bf16_nt

    def _own_scale(self, weight: FP8) -> Tensor:
        return weight.scale[::BLOCK].contiguous()

    def _product(self, codes: Tensor, scales: Tensor) -> Tensor:
        out = torch.empty(len(codes), self.shape[0], dtype=torch.bfloat16, device=codes.device)
        by_block = scales.expand(-1, self.scale.shape[1]).contiguous()
        self._multiply((codes, by_block), (self.values, self.scale), out)
        return out


def encoded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x [T, K] in e4m3 and the scale of each row, float32 [T, 1], by the launch that rounds few rows, too."""
    codes, scales = encoded_rows(x, floats=True)
    return codes.view(torch.float8_e4m3fn), scales[:, None]


def has_whole_blocks(weight: FP8) -> bool:
    """Whether neighbouring rows share their scales in blocks of 128, as DeepGEMM takes for granted."""
    starts = weight.scale[::BLOCK]
    repeated = starts.repeat_interleave(BLOCK, 0)[: len(weight.scale)]
    return bool(torch.equal(repeated, weight.scale))
