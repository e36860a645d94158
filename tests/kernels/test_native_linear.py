"""The packed product against float64, on every instruction set; the same bits in any company."""

from dataclasses import replace

import pytest
import torch

from core.api.specs import KernelQuery
from core_runtime.weights.formats import Dense, IntGroups
from tests.kernels.linear_check import check, expected

DENSE = [(torch.float32, "none"), (torch.float16, "none"), (torch.bfloat16, "none"), (torch.bfloat16, "bf16")]
INTS = [
    (bits, group, minimum, dtype, activation)
    for bits in (4, 8)
    for group in (16, 32, 128)
    for minimum, dtype in ((True, torch.float16), (False, torch.float16), (True, torch.float32))
    for activation in ("none", "int8")
]


def int_groups(bits, n, k, group, minimum, dtype):
    values = torch.randint(0, 256, (n, k * bits // 8), dtype=torch.uint8)
    scale = (torch.rand(n, k // group) * 0.01 + 0.001).to(dtype)
    low = -torch.rand(n, k // group).to(dtype) if minimum else None
    return IntGroups(bits, group, values, scale, low, 0 if minimum else 1 << (bits - 1))


@pytest.mark.parametrize(("dtype", "activation"), DENSE)
@pytest.mark.parametrize(("n", "k"), [(64, 64), (1, 1), (33, 577), (50, 96), (200, 31)])
def test_dense_product_is_exact_to_rounding_and_independent_of_the_batch(kernels, isa, dtype, activation, n, k):
    check(kernels, Dense(torch.randn(n, k).to(dtype)), activation)


@pytest.mark.parametrize(("bits", "group", "minimum", "dtype", "activation"), INTS)
def test_integer_product_matches_dequantized_weights(kernels, isa, bits, group, minimum, dtype, activation):
    for n, k in ((32, group), (45, 3 * group), (70, 384)):
        check(kernels, int_groups(bits, n, k, group, minimum, dtype), activation)


@pytest.mark.parametrize(("bits", "activation"), [(4, "none"), (4, "int8"), (8, "none"), (8, "int8")])
def test_a_minimum_is_added_beside_a_zero_point(kernels, isa, bits, activation):
    weight = int_groups(bits, 45, 192, 32, True, torch.bfloat16)
    check(kernels, replace(weight, zero=1 << (bits - 1)), activation)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 96, 97, 300])
def test_bits_do_not_depend_on_threads_rows_or_chunks(native, kernels, isa, rows):
    weights = [
        (Dense(torch.randn(130, 192).bfloat16()), "bf16"),
        (int_groups(4, 130, 192, 32, True, torch.float16), "int8"),
        (int_groups(8, 130, 192, 32, False, torch.float16), "int8"),
    ]
    for weight, activation in weights:
        linear = kernels.linear(weight, activation=activation)
        x = torch.randn(300, 192)
        whole, part = torch.empty(300, 130), torch.empty(rows, 130)
        native.pool_init(2)
        linear(x, whole)
        native.pool_init(1)
        linear(x[300 - rows :], part)
        native.pool_init(2)
        assert torch.equal(part, whole[300 - rows :])


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_gated_product_has_the_bits_of_the_product_and_the_gate(native, kernels, isa, activation):
    weights = [
        (Dense(torch.randn(256, 100)), "none"),
        (Dense(torch.randn(640, 96).bfloat16()), "bf16"),
        (int_groups(4, 64, 192, 32, True, torch.float16), "int8"),
        (int_groups(8, 320, 192, 32, False, torch.float16), "int8"),
    ]
    for weight, rounding in weights:
        (n, k), bias = weight.shape, torch.randn(weight.shape[0])
        linear = kernels.linear(weight, activation=rounding, bias=bias)
        assert linear.gated is not None
        x, both, expected = torch.randn(300, k + 3)[:, :k], torch.empty(300, n), torch.empty(300, n // 2)
        linear(x, both)
        kernels.gated(both, activation, expected)
        for rows, threads in ((1, 1), (1, 2), (5, 2), (13, 3), (96, 2), (97, 1), (300, 2)):
            native.pool_init(threads)
            out = torch.full((rows, n // 2 + 5), 7.0)
            linear.gated(x[:rows], activation, out[:, : n // 2])
            assert torch.equal(out[:, : n // 2], expected[:rows]) and (out[:, n // 2 :] == 7.0).all()
    native.pool_init(2)


@pytest.mark.parametrize("outputs", [62, 96, 130])
def test_halves_of_broken_panels_are_gated_apart(kernels, outputs):
    assert kernels.linear(Dense(torch.randn(outputs, 32)), activation="none").gated is None


def test_weights_are_packed_once_and_read_by_every_instruction_set(native, kernels):
    weight = int_groups(4, 96, 256, 32, True, torch.float16)
    linear = kernels.linear(weight, activation="int8")
    assert linear.nbytes == weight.nbytes
    x = torch.randn(3, 256)
    best = native.isa()
    for name in native.isas():
        native.set_isa(name)
        out = torch.empty(3, 96)
        linear(x, out)
        torch.testing.assert_close(out.double(), expected(weight, "int8", x), rtol=1e-4, atol=1e-4)
    native.set_isa(best)


def test_float_weights_with_bf16_rounding_are_rounded_too(kernels):
    weight = Dense(torch.randn(40, 64))
    x, out = torch.randn(2, 64), torch.empty(2, 40)
    kernels.linear(weight, activation="bf16")(x, out)
    want = x.bfloat16().double() @ weight.weight.bfloat16().double().T
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)


def test_large_values_zeros_and_empty_batches(kernels):
    weight = int_groups(4, 64, 64, 32, True, torch.float16)
    linear = kernels.linear(weight, activation="int8")
    x = torch.zeros(3, 64)
    x[1] = 3e30
    x[2, 5] = 1e-42  # a denormal: its scale underflows
    out = torch.full((3, 64), 9.0)
    linear(x, out)
    assert (out[0] == 0).all() and out.isfinite().all()
    linear(torch.empty(0, 64), torch.empty(0, 64))


def test_wrong_shapes_types_and_rows_are_refused_by_a_sentence(kernels):
    linear = kernels.linear(Dense(torch.randn(8, 16)), activation="none")
    out = torch.empty(2, 8)
    with pytest.raises(ValueError, match=r"expected float32 \[rows, 16\]"):
        linear(torch.randn(2, 15), out)
    with pytest.raises(ValueError, match="float64"):
        linear(torch.randn(2, 16).double(), out)
    with pytest.raises(ValueError, match="contiguous"):
        linear(torch.randn(16, 2).T, out)
    with pytest.raises(ValueError, match="out has 2 rows, expected 3"):
        linear(torch.randn(3, 16), out)
    with pytest.raises(IndexError, match="row 8 of a weight with 8 rows"):
        linear.rows(torch.tensor([0, 8]), torch.empty(2, 16))
    with pytest.raises(ValueError, match="bias"):
        kernels.linear(Dense(torch.randn(8, 16)), activation="none", bias=torch.randn(9))


def test_supports_names_what_is_missing(kernels):
    def codes(**query):
        return [reason.code for reason in kernels.supports(KernelQuery(device="cpu", **query))]

    assert codes(op="rms_norm") == []
    assert codes(op="linear", format="int4_groups", activation="int8", attributes={"group_size": 32}) == []
    assert codes(op="linear", format="int4_groups", activation="int8", attributes={"group_size": 24}) == ["group_size"]
    assert codes(op="linear", format="bfloat16", activation="int8") == ["activation"]
    assert codes(op="linear", format="trellis") == ["format"]
    assert codes(op="linear", format="nf4", activation="int8") == ["activation"]
    assert codes(op="linear", format="nf4", attributes={"group_size": 8}) == ["group_size"]
    assert codes(op="linear", format="int8_channel", activation="int8_row", shape=(8, 200_000)) == ["inputs"]
    assert codes(op="convolution") == ["op"]
    assert [r.code for r in kernels.supports(KernelQuery(op="add", device="cuda:0"))] == ["device"]
