"""Packed integer groups with zero points as bytes, bfloat16 scales, an order of inputs, and inputs with scales by parts."""

import numpy as np
import pytest
import torch

from core_runtime.layers.experts import ReferenceExperts
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.weights.formats import Int8Channel, IntGroups
from core_runtime.weights.input_order import InputOrder
from tests.kernels.linear_check import check

GROUPS = [(16, 32), (32, 64), (48, 144), (128, 384), (160, 160)]
"""Inputs that share a scale of weights, and all inputs; above 32 they have several scales of inputs."""


def random_bytes(*shape, below=256):
    return torch.randint(0, below, shape, dtype=torch.uint8)


def with_zeros(bits, n, k, group, dtype=torch.bfloat16, order=False):
    values = random_bytes(n, k * bits // 8)
    scale = torch.rand(n, k // group) * 0.01 + 0.001
    zeros = random_bytes(n, k // group, below=1 << bits)
    own = InputOrder.of(torch.randperm(k)) if order else None
    return IntGroups(bits, group, values, scale.to(dtype), zeros=zeros, order=own)


@pytest.mark.parametrize("activation", ["none", "int8"])
@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_bfloat16_scales_and_orders(kernels, isa, bits, activation):
    for number, (group, k) in enumerate(GROUPS):
        dtype = (torch.bfloat16, torch.float16, torch.float32)[number % 3]
        check(kernels, with_zeros(bits, 37, k, group, dtype, order=number % 2 == 0), activation, rows=13)


def test_orders_without_zero_points(kernels, isa):
    order = InputOrder.of(torch.randperm(96))
    signed = IntGroups(8, 32, random_bytes(33, 96), torch.rand(33, 3), zero=128, order=order)
    lowest = IntGroups(4, 96, random_bytes(33, 48), torch.rand(33, 1).half(), -torch.rand(33, 1).half(), order=order)
    for weight in (signed, lowest):
        for activation in ("none", "int8"):
            check(kernels, weight, activation, rows=7)


@pytest.mark.parametrize("k", [1, 31, 64, 577, 1000])
def test_int8_channels_with_scales_by_parts_of_a_row(kernels, isa, k):
    values = torch.randint(-128, 128, (37, k), dtype=torch.int8)
    check(kernels, Int8Channel(values, torch.rand(37, 1) * 0.01 + 0.001), "int8", rows=13)


def whole_inputs(rows, k):
    """Integers whose largest in every 16 is 127: they are quantized to themselves, in any groups."""
    x = torch.randint(-127, 128, (rows, k)).float()
    x[:, ::16] = 127.0
    return x


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("group", "k"), GROUPS)
def test_integer_corrections_are_exact(kernels, isa, bits, group, k):
    """With scales of one the result is an integer, which 64-bit arithmetic tells."""
    n = 70
    weight = with_zeros(bits, n, k, group)
    plain = IntGroups(bits, group, weight.values, torch.ones(n, k // group), zeros=weight.zeros)
    x = whole_inputs(9, k)
    out = torch.empty(9, n)
    kernels.linear(plain, activation="int8")(x, out)
    integers = plain.unpacked().numpy().astype(np.int64)
    zeros = plain.zeros.numpy().astype(np.int64).repeat(group, axis=1)
    want = x.numpy().astype(np.int64) @ (integers - zeros).T
    assert np.array_equal(out.numpy().astype(np.int64), want)


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("group", [32, 384])
def test_bits_do_not_depend_on_threads_or_rows(native, kernels, isa, group, order):
    weight = with_zeros(4, 130, 384, group, order=order)
    linear = kernels.linear(weight, activation="int8")
    x = torch.randn(97, 384)
    whole = torch.empty(97, 130)
    linear(x, whole)
    native.pool_init(1)
    for rows in (1, 5, 12):
        part = torch.empty(rows, 130)
        linear(x[97 - rows :], part)
        assert torch.equal(part, whole[97 - rows :])
    native.pool_init(2)


def int8_channel(n, k):
    return Int8Channel(torch.randint(-128, 128, (n, k), dtype=torch.int8), torch.rand(n, 1))


@pytest.mark.parametrize("make", [int8_channel, lambda n, k: with_zeros(4, n, k, 64)])
def test_two_ranks_add_up_to_the_bits_of_one(kernels, isa, make):
    weight = make(40, 512)
    x = torch.randn(5, 512)
    whole = torch.empty(5, 40)
    kernels.linear(weight, activation="int8", segments=8)(x, whole)
    added = torch.zeros(5, 40)
    for half in (slice(0, 256), slice(256, 512)):
        part = kernels.linear(weight.columns(half), activation="int8", segments=4)
        part(x[:, half], added, accumulate=True)
    assert torch.equal(added, whole)


def test_the_packed_weight_takes_the_bytes_of_the_canonical_one(kernels):
    for order in (False, True):
        weight = with_zeros(4, 64, 384, 128, order=order)
        packed = kernels.linear(weight, activation="int8")
        assert packed.nbytes == weight.nbytes
        order_bytes = 384 * 4 if order else 0
        assert kernels.prepared_nbytes(weight, activation="int8") == weight.nbytes - order_bytes


@pytest.mark.parametrize("activation", ["none", "int8"])
def test_experts_with_one_order_run_together_and_others_one_by_one(kernels, activation):
    orders = [InputOrder.of(torch.randperm(64)) for _ in range(2)]
    provider = KernelSet([kernels])

    def layer(n, order):
        weight = with_zeros(4, n, 64, 32)
        ordered = IntGroups(4, 32, weight.values, weight.scale, zeros=weight.zeros, order=order)
        return Linear([provider.linear(ordered, activation=activation)])

    x, ids = torch.randn(7, 64), torch.randint(0, 2, (7, 1))
    weights = torch.rand(7, 1)
    for second, name in ((orders[0], "NativeExperts"), (orders[1], "ReferenceExperts")):
        gate_up = [layer(128, orders[0]), layer(128, second)]
        down = [layer(64, None), layer(64, None)]
        experts = provider.experts(gate_up, down, "silu")
        assert type(experts).__name__ == name
        out, want = torch.zeros(7, 64), torch.zeros(7, 64)
        experts(x, ids, weights, out)
        ReferenceExperts(gate_up, down, "silu", provider.gated)(x, ids, weights, want)
        torch.testing.assert_close(out, want)
