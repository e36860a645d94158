"""Modules of torch whose matrix is in a native kernel.

Owns: these modules and how they take the place of torch's own. Never does: prepare a kernel. Called by: models of
transformers, once a step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from core_runtime.contracts import LinearKernel
from core_runtime.models.fallback.trial import below


class KernelLinear(nn.Linear):  # type: ignore[misc]
    """A linear layer.

    kernel: has its weight, and its bias unless the module has kept that.
    adds_bias: whether the module has kept its bias.
    """

    kernel: LinearKernel
    adds_bias: bool

    def forward(self, input: Tensor) -> Tensor:
        """[..., N] of input [..., K]."""
        kernel = self.kernel
        size, width = kernel.shape
        rows = input.reshape(-1, width)
        out = torch.empty(rows.shape[0], size, dtype=input.dtype, device=input.device)
        kernel(rows, out)
        if self.adds_bias:
            out += self.bias
        return out.view(*input.shape[:-1], size)

    __call__ = forward  # nobody hangs hooks on it, and looking for them is a quarter of what a call costs here


class KernelEmbedding(nn.Embedding):  # type: ignore[misc]
    """An embedding; what a class of transformers does around the rows is done as before.

    kernel: has its weight.
    """

    kernel: LinearKernel

    def forward(self, input: Tensor) -> Tensor:
        """[..., K], the rows of input [...]."""
        _, width = self.kernel.shape
        out = torch.empty(input.numel(), width, dtype=self.weight.dtype, device=input.device)
        self.kernel.rows(input.reshape(-1), out)
        return out.view(*input.shape, width)


def put_linear(module: nn.Module, kernel: LinearKernel, empty: nn.Parameter, *, own_bias: bool = False) -> None:
    """Let this `nn.Linear` call the kernel, and give up its own tensors.

    empty: in the place of the weight, for code that asks it for dtype and device.
    own_bias: the module keeps its bias, and adds it.
    """
    module.__class__ = KernelLinear
    module.kernel = kernel
    module._parameters["weight"] = empty
    module.adds_bias = own_bias and module.bias is not None
    if not own_bias:
        module._parameters["bias"] = None


def put_embedding(module: nn.Module, kernel: LinearKernel, empty: nn.Parameter) -> None:
    """Let this embedding call the kernel, and give up its own tensor. empty: see `put_linear`; of the rows' dtype."""
    module.__class__ = below(type(module), KernelEmbedding)
    module.kernel = kernel
    module._parameters["weight"] = empty
