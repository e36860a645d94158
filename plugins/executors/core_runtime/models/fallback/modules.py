"""Torch modules whose matrix is in a native kernel.

Owns: these modules and how they take the place of torch's own. Never does: prepare a kernel. Called by: models of
transformers, once a step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from core_runtime.contracts import LinearKernel
from core_runtime.models.fallback.trial import below


class KernelLinear(nn.Linear):  # type: ignore[misc]
    """A linear layer that calls a native kernel.

    kernel: holds the weight, and the bias unless the module has kept it.
    adds_bias: whether the module has kept its bias.
    """

    kernel: LinearKernel
    adds_bias: bool

    def forward(self, input: Tensor) -> Tensor:
        """Return [..., N] of input [..., K]."""
        kernel = self.kernel
        size, width = kernel.shape
        rows = input.reshape(-1, width)
        out = torch.empty(rows.shape[0], size, dtype=input.dtype, device=input.device)
        kernel(rows, out)
        if self.adds_bias:
            out += self.bias
        return out.view(*input.shape[:-1], size)

    __call__ = forward  # it has no hooks, and looking for them is a quarter of a call's cost here


class KernelEmbedding(nn.Embedding):  # type: ignore[misc]
    """An embedding that looks up rows in a native kernel. Other code of its transformers class runs as before.

    kernel: holds the weight.
    """

    kernel: LinearKernel

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows [..., K] of input [...], int64."""
        _, width = self.kernel.shape
        out = torch.empty(input.numel(), width, dtype=self.weight.dtype, device=input.device)
        self.kernel.rows(input.reshape(-1), out)
        return out.view(*input.shape, width)


def put_linear(module: nn.Module, kernel: LinearKernel, empty: nn.Parameter, *, own_bias: bool = False) -> None:
    """Let this `nn.Linear` call the kernel, and release its own tensors.

    empty: placeholder for the weight, for code that reads its dtype and device.
    own_bias: the module keeps its bias, and adds it.
    """
    module.__class__ = KernelLinear
    module.kernel = kernel
    module._parameters["weight"] = empty
    module.adds_bias = own_bias and module.bias is not None
    if not own_bias:
        module._parameters["bias"] = None


def put_embedding(module: nn.Module, kernel: LinearKernel, empty: nn.Parameter) -> None:
    """Let this embedding call the kernel, and release its own tensor. empty: see `put_linear`; it has the dtype of the
    rows.
    """
    module.__class__ = below(type(module), KernelEmbedding)
    module.kernel = kernel
    module._parameters["weight"] = empty
