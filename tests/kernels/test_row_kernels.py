"""The kernels of `--numerics reference`: a row's bits alone, among others and at any address; values against float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.layers.rows import RowKernels
from core_runtime.specs.routing_spec import RoutingSpec
from core_runtime.weights.formats import Dense

WIDTH, ROWS = 101, 37
"""Odd, so that rows begin at addresses that no vector is aligned to, and vectors have tails."""


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def norm(kernels: RowKernels, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.rms_norm(x, random(WIDTH, seed=1), 1e-6, out)
    return out


def norm_heads(kernels: RowKernels, x: Tensor) -> Tensor:
    out = x.unsqueeze(1).repeat(1, 3, 1)
    kernels.rms_norm_heads(out, random(WIDTH, seed=1), 1e-6)
    return out


def soft_cap(kernels: RowKernels, x: Tensor) -> Tensor:
    out = x.clone()
    kernels.soft_cap(out, 3.0)
    return out


def gated(activation: str) -> Callable[[RowKernels, Tensor], Tensor]:
    def apply(kernels: RowKernels, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernels.gated(torch.cat([x, x.flip(1)], 1), activation, out)
        return out

    return apply


def linear(activation: str, dtype: torch.dtype) -> Callable[[RowKernels, Tensor], Tensor]:
    weight = Dense(random(64, WIDTH, seed=2).to(dtype))

    def apply(kernels: RowKernels, x: Tensor) -> Tensor:
        out = torch.empty(x.shape[0], 64)
        kernels.linear(weight, activation=activation, bias=random(64, seed=3))(x, out)
        return out

    return apply


def experts(kernels: RowKernels, x: Tensor) -> Tensor:
    kernel_set = KernelSet([kernels])

    def layers(rows: int, width: int, seed: int) -> list[Linear]:
        return [
            Linear([kernel_set.linear(Dense(random(rows, width, seed=seed + e)), activation="none")]) for e in range(4)
        ]

    ids, weights = torch.empty(x.shape[0], 2, dtype=torch.int64), torch.empty(x.shape[0], 2)
    kernel_set.route(x[:, :4], RoutingSpec(top_k=2), None, ids, weights)
    out = torch.empty_like(x)
    kernel_set.experts(layers(2 * 33, WIDTH, 10), layers(WIDTH, 33, 20), "silu")(x, ids, weights, out)
    return out


OPERATIONS = {
    "rms_norm": norm,
    "rms_norm_heads": norm_heads,
    "soft_cap": soft_cap,
    "silu": gated("silu"),
    "gelu": gated("gelu_tanh"),
    "linear": linear("none", torch.float32),
    "linear, bf16": linear("bf16", torch.bfloat16),
    "linear, int8 rows": linear("int8_row", torch.float32),
    "experts": experts,
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_depends_on_itself_alone(name: str, threads: int) -> None:
    apply, x, before = OPERATIONS[name], random(ROWS, WIDTH) * 2, torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = apply(RowKernels(), x)
        for begin, end in ((0, 1), (3, 4), (36, 37), (5, 21), (1, 37)):
            assert torch.equal(apply(RowKernels(), x[begin:end]), together[begin:end])
    finally:
        torch.set_num_threads(before)


def test_products_are_right() -> None:
    x = random(ROWS, WIDTH)
    exact = x.double() @ random(64, WIDTH, seed=2).double().T + random(64, seed=3).double()
    assert torch.allclose(linear("none", torch.float32)(RowKernels(), x).double(), exact, atol=2e-5)


def test_they_come_last_and_are_named_once() -> None:
    kernels = KernelSet([RowKernels()])
    assert [provider.name for provider in kernels.providers] == ["reference_rows"]
    assert kernels.numerics == RowKernels.numerics != KernelSet([]).numerics
