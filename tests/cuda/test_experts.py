"""Layers of experts of the Triton kernels equal the reference, sorted and not, and combine in its order."""

import pytest
import torch

from core_kernels.triton.combine import combine_rows
from core_kernels.triton.kernels import TritonKernels
from core_kernels.triton.products import experts as module
from core_kit.fixtures.weights import random_weights
from core_kit.oracles.numbers import close
from core_runtime.layers.experts import combine
from core_runtime.layers.kernels import weight_format
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.weights.experts import Experts
from core_runtime.weights.formats import FP8, Dense

KERNELS = TritonKernels()
COUNT = 8
HIDDEN = 64


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _choices(tokens: int, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.rand(tokens, COUNT, generator=generator).argsort(-1)[:, :top_k].contiguous()
    return ids, torch.rand(tokens, top_k, generator=generator)


def _layer(kernels, gate_up, down, precision="none"):
    first = Experts(gate_up, COUNT)
    second = Experts(down, COUNT)
    return kernels.grouped_experts(first, second, "silu", precision=precision, gated=kernels.gated)


def _same_as_reference(gate_up, down, tokens: int, precision="none", tolerance=2e-5) -> None:
    mine = _layer(KERNELS, gate_up, down, precision)
    reference = _layer(ReferenceKernels(), gate_up, down, precision)
    x = _random(tokens, HIDDEN)
    ids, weights = _choices(tokens, 3)
    for accumulate in (False, True):
        got = torch.ones(tokens, HIDDEN)
        expected = torch.ones(tokens, HIDDEN)
        mine(x, ids, weights, got, accumulate=accumulate)
        reference(x, ids, weights, expected, accumulate=accumulate)
        close(got, expected, tolerance, f"{weight_format(gate_up)}, {tokens} tokens", axis=-1)


@pytest.mark.parametrize(
    "tokens", [1, 40, pytest.param(80, marks=pytest.mark.gpu_interpreter)]
)  # a row a block, blocks of 16, and of 32, which no tile has
def test_dense_experts(tokens):
    gate_up = Dense(_random(COUNT * 2 * HIDDEN, HIDDEN) * 0.1)
    down = Dense(_random(COUNT * HIDDEN, HIDDEN, seed=1) * 0.1)
    _same_as_reference(gate_up, down, tokens)


@pytest.mark.gpu_interpreter
@pytest.mark.parametrize(
    "activation", ["silu", pytest.param("clamped_swiglu:1.702:7", marks=pytest.mark.gpu_interpreter)]
)
def test_a_gate_in_the_product_has_the_bits_of_two_calls(activation):
    first = Experts(Dense(_random(COUNT * 2 * HIDDEN, HIDDEN).bfloat16()), COUNT)
    second = Experts(Dense(_random(COUNT * HIDDEN, HIDDEN, seed=1).bfloat16()), COUNT)
    x = _random(5, HIDDEN).bfloat16()
    ids, weights = _choices(5, 3)
    within, apart = torch.empty(2, 5, HIDDEN).bfloat16()
    KERNELS.grouped_experts(first, second, activation, precision="none", gated=KERNELS.gated)(x, ids, weights, within)
    other = TritonKernels()
    KERNELS.grouped_experts(first, second, activation, precision="none", gated=other.gated)(x, ids, weights, apart)
    assert torch.equal(within, apart)


@pytest.mark.gpu_interpreter
def test_experts_whose_inputs_are_8_bit_floats():
    up = _random(COUNT * 2 * HIDDEN, HIDDEN).to(torch.float8_e4m3fn)
    down = _random(COUNT * HIDDEN, HIDDEN, seed=1).to(torch.float8_e4m3fn)
    scale = _random(COUNT * 2 * HIDDEN, seed=2).abs() + 0.1
    both = FP8.from_scale(up, scale), FP8.from_scale(down, scale[: COUNT * HIDDEN])
    # a number at a tie is rounded to its other neighbour where a sum has another last digit
    _same_as_reference(*both, 5, "fp8_row", 1e-2)


@pytest.mark.gpu_interpreter
def test_experts_of_every_format():
    every_gate_up = random_weights((COUNT * 2 * HIDDEN, HIDDEN))
    every_down = random_weights((COUNT * HIDDEN, HIDDEN))
    for gate_up, down in zip(every_gate_up, every_down, strict=True):
        if not isinstance(gate_up, Dense):
            _same_as_reference(gate_up, down, 5)


def test_a_token_has_the_same_bits_alone_and_among_others():
    gate_up = Dense(_random(COUNT * 2 * HIDDEN, HIDDEN).bfloat16())
    down = Dense(_random(COUNT * HIDDEN, HIDDEN, seed=1).bfloat16())
    layer = _layer(KERNELS, gate_up, down)
    x = _random(64, HIDDEN).bfloat16()
    ids, weights = _choices(64, 2)
    together = torch.empty_like(x)
    layer(x, ids, weights, together)
    for tokens in (1, 7):
        some = torch.empty(tokens, HIDDEN).bfloat16()
        layer(x[:tokens], ids[:tokens], weights[:tokens], some)
        assert torch.equal(some, together[:tokens])


@pytest.mark.parametrize("tokens, top_k", [(2, 3), (64, 2), (300, 8)])
def test_every_row_goes_to_its_expert_once(tokens, top_k):
    ids, _ = _choices(tokens, top_k)
    routed = module.route_rows(ids, COUNT)
    blocks = routed.pairs.view(len(routed.experts), -1)
    real = blocks[blocks >= 0]
    assert sorted(real.tolist()) == list(range(tokens * top_k))
    for expert, block in zip(routed.experts.tolist(), blocks, strict=True):
        members = block[block >= 0].tolist()
        assert all(int(ids.flatten()[row]) == expert for row in members)


@pytest.mark.parametrize("count", [8, 12, 6, 5])
def test_combined_in_the_order_of_the_reference(count):
    parts = _random(5, 4, 96)
    generator = torch.Generator().manual_seed(3)
    ids = torch.rand(5, count, generator=generator).argsort(-1)[:, :4].contiguous()
    weights = torch.rand(5, 4, generator=generator)
    out = torch.empty(5, 96)
    combine_rows(parts.flatten(0, 1), ids, weights, out, count, False)
    assert torch.equal(out, combine(parts, ids, weights, count))
