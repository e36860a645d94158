"""Norms and activations of a model of transformers that native kernels compute.

Owns: the choice of these modules, and their replacement. Never does: trust a name alone: a module is replaced only when
its results agree with the kernel's. Called by: the building of the model, once its weights are read.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from core_runtime.layers.kernels import KernelSet

ACTIVATIONS: Final = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELU": "gelu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "QuickGELUActivation": "quick_gelu",
    "ReLU": "relu",
    "ReLUSquaredActivation": "relu2",
}
"""Class names of torch and transformers → activation here."""
OFFSETS: Final = (0.0, 1.0)
"""Offsets that norms add to their weights."""
CLOSE: Final = 0.02
"""Maximum deviation as a share of the row's largest number: several roundings to bfloat16."""


class KernelNorm(nn.Module):  # type: ignore[misc]
    """A norm over the last axis.

    norm_kernels: kernel provider that computes the norm.
    norm_weight: float32 [H], offset included.
    norm_eps: the epsilon under the root.
    """

    norm_kernels: KernelSet
    norm_weight: Tensor
    norm_eps: float

    def forward(self, hidden_states: Tensor, *others: Any, **named: Any) -> Tensor:
        """Return the normalized hidden_states [..., H]. Inputs of another dtype than the module's go to the original
        code.
        """
        if others or named or hidden_states.dtype is not self.weight.dtype:
            usual: Tensor = super().forward(hidden_states, *others, **named)
            return usual
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        out = torch.empty_like(rows, memory_format=torch.contiguous_format)
        self.norm_kernels.rms_norm(rows, self.norm_weight, self.norm_eps, out)
        return out.view(hidden_states.shape)


class KernelActivation(nn.Module):  # type: ignore[misc]
    """An activation that calls a native kernel.

    kernels: kernel provider that computes it.
    name: see `core_runtime.layers.activations`.
    dtype: dtype that the kernels take.
    usual: original module, for inputs of another dtype.
    """

    def __init__(self, kernels: KernelSet, name: str, dtype: torch.dtype, usual: nn.Module) -> None:
        super().__init__()
        self.kernels = kernels
        self.name = name
        self.dtype = dtype
        self.usual = usual

    def forward(self, input: Tensor) -> Tensor:
        """Return act(input), of the input's shape."""
        if input.dtype is not self.dtype:
            usual: Tensor = self.usual(input)
            return usual
        rows = input.reshape(-1, input.shape[-1])
        out = torch.empty_like(rows, memory_format=torch.contiguous_format)
        self.kernels.activate(rows, self.name, out)
        return out.view(input.shape)


def put_pointwise(model: nn.Module, kernels: KernelSet, dtype: torch.dtype) -> None:
    """Let native kernels compute the norms and activations that they support. dtype: dtype of the tensors between
    layers.
    """
    for module in list(model.modules()):
        if type(module).__name__.endswith("RMSNorm"):
            _put_norm(module, kernels, dtype)
        for own, child in list(module.named_children()):
            name = ACTIVATIONS.get(type(child).__name__)
            if name is not None:
                module._modules[own] = _activation(child, name, kernels, dtype)


def _activation(module: nn.Module, name: str, kernels: KernelSet, dtype: torch.dtype) -> nn.Module:
    """Return the replacement of an activation module: the module itself where its results differ from the kernel's."""
    probe = torch.linspace(-6, 6, 64, dtype=dtype).view(2, 32)
    replaced = KernelActivation(kernels, name, dtype, module)
    return replaced if _agree(module(probe), replaced(probe)) else module


def _put_norm(module: nn.Module, kernels: KernelSet, dtype: torch.dtype) -> None:
    """Replace the code of a norm, if the kernel gives the same results with its weight as it is or with 1 added."""
    own = dict(module.named_parameters(recurse=False))
    weight = own.get("weight")
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if list(own) != ["weight"] or weight is None or weight.dim() != 1 or weight.dtype is not dtype:
        return
    if not isinstance(eps, float) or list(module.children()):
        return
    size = weight.shape[0]
    probe = torch.linspace(-1, 2, 3 * size).view(3, size)
    probe[1] *= eps**0.5  # a row small enough that eps matters
    rows = probe.to(dtype)
    expected = module(rows)
    usual = type(module)
    for offset in OFFSETS:
        module.__class__ = type(usual.__name__, (KernelNorm, usual), {})
        module.norm_kernels = kernels
        module.norm_weight = weight.float() + offset
        module.norm_eps = eps
        if _agree(expected, module(rows)):
            return
    module.__class__ = usual


def _agree(expected: Tensor, found: Tensor) -> bool:
    """Whether all rows of both agree except for rounding."""
    if expected.shape != found.shape or expected.dtype is not found.dtype:
        return False
    limits = CLOSE * expected.float().abs().amax(dim=-1, keepdim=True)
    return bool(((expected.float() - found.float()).abs() <= limits).all())
