"""Modules of torch whose matrix is in a native kernel.

Owns: these modules and how they take the place of torch's own. Never does: prepare a kernel. Called by: models of
transformers, once a step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from core.models.fallback.trial import below
from core.plugin.contracts import LinearKernel


class KernelLinear(nn.Linear):  # type: ignore[misc]
    """A linear layer.

    kernel: has its weight, and its bias unless the module has kept that.
    """

    kernel: LinearKernel

    def forward(self, input: Tensor) -> Tensor:
        """[..., N] of input [..., K]."""
        kernel = self.kernel
        size, width = kernel.shape
        rows = input.reshape(-1, width)
        out = torch.empty(rows.shape[0], size, dtype=input.dtype, device=input.device)
        kernel(rows, out)
        if self.bias is not None:
            out += self.bias
        return out.view(*input.shape[:-1], size)


class KernelEmbedding(nn.Embedding):  # type: ignore[misc]
    """An embedding; what a class of transformers does around the rows is done as before.

    kernel: has its weight.
    row_dtype: of the rows.
    """

    kernel: LinearKernel
    row_dtype: torch.dtype

    def forward(self, input: Tensor) -> Tensor:
        """[..., K], the rows of input [...]."""
        _, width = self.kernel.shape
        out = torch.empty(input.numel(), width, dtype=self.row_dtype, device=input.device)
        self.kernel.rows(input.reshape(-1), out)
        return out.view(*input.shape, width)


def put_linear(module: nn.Module, kernel: LinearKernel, *, own_bias: bool = False) -> None:
    """Let this `nn.Linear` call the kernel, and give up its own tensors. own_bias: all but the bias, which it adds."""
    module.__class__ = KernelLinear
    module.kernel = kernel
    module._parameters["weight"] = None
    if not own_bias:
        module._parameters["bias"] = None


def put_embedding(module: nn.Module, kernel: LinearKernel, dtype: torch.dtype) -> None:
    """Let this embedding call the kernel, and give up its own tensor. dtype: of the rows."""
    module.__class__ = below(type(module), KernelEmbedding)
    module.kernel = kernel
    module.row_dtype = dtype
    module._parameters["weight"] = None
