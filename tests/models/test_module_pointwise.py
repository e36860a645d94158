"""Norms and activations of transformers are computed natively where that gives the same numbers, and only there."""

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from core_runtime.layers.kernels import KernelSet
from core_runtime.models.fallback.pointwise import KernelActivation, KernelNorm, put_pointwise


class GroupRMSNorm(LlamaRMSNorm):  # type: ignore[misc]
    """Has the name of the usual norm, and another meaning."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states * self.weight


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, norm: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.act = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(x))


@pytest.mark.parametrize("norm", [LlamaRMSNorm, Gemma2RMSNorm])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "quick_gelu", "relu", "relu2"])
@torch.inference_mode()
def test_known_ones_are_native_and_keep_their_numbers(norm: type[nn.Module], activation: str) -> None:
    torch.manual_seed(0)
    layer = Layer(norm(24), ACT2FN[activation])
    layer.norm.weight.data.normal_()
    x = torch.randn(2, 3, 24)
    expected = layer(x)
    put_pointwise(layer, KernelSet([]), torch.float32)
    assert isinstance(layer.norm, KernelNorm)
    assert isinstance(layer.act, KernelActivation)
    torch.testing.assert_close(layer(x), expected, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_what_answers_otherwise_stays() -> None:
    usual = ACT2FN["silu"]
    odd = ACT2FN["gelu"]
    odd.forward = lambda x: x
    layer = Layer(GroupRMSNorm(24), odd)
    put_pointwise(layer, KernelSet([]), torch.float32)
    assert type(layer.norm) is GroupRMSNorm
    assert layer.act is odd
    other = Layer(LlamaRMSNorm(24), usual)
    put_pointwise(other, KernelSet([]), torch.float32)
    wide = torch.randn(1, 24, dtype=torch.float64)
    assert other(wide).dtype is torch.float64
