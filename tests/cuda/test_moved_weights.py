"""Kernels whose weights are moved read the new place alone, and compute the same bits: what weights in host memory need."""

from dataclasses import replace

import pytest
import torch

from core_kernels.cublas.kernels import CublasKernels
from core_kernels.triton.kernels import TritonKernels
from core_kit.fixtures.weights import random_weights
from core_runtime.contracts import MovesWeights
from core_runtime.layers.kernels import weight_format
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.weights.experts import Experts
from core_runtime.weights.formats import Dense, Int8Channel

TRITON = TritonKernels()
PROVIDERS = {"triton": TRITON, "cublas": CublasKernels(TRITON, most=0), "reference": ReferenceKernels()}
FORMATS = {weight_format(weight): weight for weight in random_weights((32, 128))}
COUNT, HIDDEN = 4, 64


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _moved(kernel: MovesWeights, compute) -> None:
    """Compare what a kernel computes before its tensors are moved, and after; the former ones hold rubbish then."""
    assert isinstance(kernel, MovesWeights)
    expected = compute()
    held = kernel.weights()
    assert held and all(tensor.is_contiguous() for tensor in held)
    copies = [tensor.clone() for tensor in held]
    for tensor in held:
        tensor.view(torch.uint8).fill_(0x7F)
    kernel.use_weights(copies)
    assert torch.equal(compute(), expected)
    assert [tensor.data_ptr() for tensor in kernel.weights()] == [tensor.data_ptr() for tensor in copies]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["triton", "reference"])
def test_matrices_of_every_format(name: str, form: str) -> None:
    weight = FORMATS[form]
    weight = replace(weight, **{field: tensor.clone() for field, tensor in weight.tensors().items()})
    kernel = PROVIDERS[name].linear(weight, activation="none", bias=_random(weight.shape[0], seed=2))

    def compute() -> torch.Tensor:
        out = torch.empty(2, weight.shape[0])
        kernel(_random(2, weight.shape[1]), out)
        return out

    _moved(kernel, compute)


def test_integers_with_rounded_inputs_and_libraries_follow() -> None:
    """Kernels that keep views of their weight beside it."""
    values = torch.randint(-100, 100, (32, 128), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    integers = TRITON.linear(Int8Channel(values, _random(32, 1).abs()), activation="int8_row")
    dense = PROVIDERS["cublas"].linear(Dense(_random(32, 128)), activation="none")
    for kernel in (integers, dense):

        def compute(kernel=kernel) -> torch.Tensor:
            out = torch.empty(3, 32)
            kernel(_random(3, 128), out)
            return out

        _moved(kernel, compute)


@pytest.mark.parametrize("name", PROVIDERS)
def test_heads(name: str) -> None:
    kernel = PROVIDERS[name].heads(_random(3, 16, 32), "none")

    def compute() -> torch.Tensor:
        out = torch.empty(2, 3, 16)
        kernel(_random(2, 3, 32), out)
        return out

    _moved(kernel, compute)


@pytest.mark.parametrize("name", ["triton", "cublas"])
def test_experts(name: str) -> None:
    provider = PROVIDERS[name]
    gate_up = Experts(Dense(_random(COUNT * 2 * HIDDEN, HIDDEN) * 0.1), COUNT)
    down = Experts(Dense(_random(COUNT * HIDDEN, HIDDEN, seed=1) * 0.1), COUNT)
    kernel = provider.grouped_experts(gate_up, down, "silu", precision="none", gated=TRITON.gated)

    def compute() -> torch.Tensor:
        out = torch.zeros(2, HIDDEN)
        kernel(_random(2, HIDDEN), torch.tensor([[0, 3], [1, 2]]), torch.tensor([[0.5, 0.5], [0.2, 0.8]]), out)
        return out

    _moved(kernel, compute)
