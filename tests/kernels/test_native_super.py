"""Products of weights in planes of bits, as GGUF stores them: the bits of the same weights as 8-bit groups, everywhere."""

import pytest
import torch

from core.api.specs import KernelQuery
from core_quantization.declared.bits import to_nibbles
from core_quantization.gguf.blocks import FORMATS
from core_runtime.weights.formats import IntGroups, SuperGroups
from core_runtime.weights.input_order import InputOrder
from core_runtime.weights.tables import TABLES
from tests.kernels.linear_check import check
from tests.kernels.test_native_experts import choice, layer
from tests.quantization.test_gguf_quantization import packed, random_blocks

TYPES = [dtype for dtype, row in FORMATS.items() if row.form.endswith("_super")]
TABLE_ZERO = 128
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 100)


def random_weight(dtype: str, n: int, k: int) -> SuperGroups:
    weight = packed(dtype, random_blocks(dtype, n, k // FORMATS[dtype].block_size))
    assert isinstance(weight, SuperGroups)
    return weight


def widened(weight: SuperGroups) -> IntGroups:
    """The same weight as groups of 8-bit integers with float32 scales."""
    scale, minimum = weight.wide_scales()
    integers = weight.integers()
    zero = weight.zero
    if weight.table is not None:
        zero = TABLE_ZERO
        own = TABLES[weight.table]
        scale = scale * own.unit
        table = torch.tensor(own.multiples) + zero
        integers = table[integers.int()].to(torch.uint8)
    return IntGroups(8, weight.group_size, integers, scale, minimum, zero)


@pytest.mark.parametrize("dtype", TYPES)
def test_products_have_the_bits_of_groups_of_bytes(kernels, isa, dtype):
    weight = random_weight(dtype, 70, 768)
    wide = widened(weight)
    assert torch.equal(weight.dequantize(), wide.dequantize())
    for activation in ("none", "int8"):
        for segments in (1, 8):
            mine = kernels.linear(weight, activation=activation, segments=segments)
            other = kernels.linear(wide, activation=activation, segments=segments)
            for rows in ROWS:
                x = torch.randn(rows, 768)
                got, expected = torch.empty(rows, 70), torch.empty(rows, 70)
                mine(x, got)
                other(x, expected)
                assert torch.equal(got, expected), (activation, segments, rows)


@pytest.mark.parametrize("activation", ["none", "int8"])
@pytest.mark.parametrize("dtype", TYPES)
def test_products_equal_float64(kernels, isa, dtype, activation):
    for n in (1, 33):
        check(kernels, random_weight(dtype, n, 256), activation, rows=11)


@pytest.mark.parametrize("dtype", TYPES)
def test_gated_products_are_the_product_and_then_the_gate(kernels, dtype):
    linear = kernels.linear(random_weight(dtype, 128, 256), activation="int8")
    for rows in (1, 40):
        x = torch.randn(rows, 256) * 0.01
        both, gated, expected = torch.empty(rows, 128), torch.empty(rows, 64), torch.empty(rows, 64)
        linear(x, both)
        kernels.gated(both, "silu", expected)
        linear.gated(x, "silu", gated)
        assert torch.equal(gated, expected)


@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("dtype", TYPES)
def test_experts_have_the_bits_of_groups_of_bytes(kernels, dtype, tokens):
    gate_up = [random_weight(dtype, 512, 256) for _ in range(4)]
    down = [random_weight(dtype, 256, 256) for _ in range(4)]
    x = torch.randn(tokens, 256) * 0.01
    ids, weights = choice(tokens, 4, 2)
    got, expected = torch.empty(tokens, 256), torch.empty(tokens, 256)
    layer(kernels, gate_up, down, activation="int8")(x, ids, weights, got)
    layer(kernels, list(map(widened, gate_up)), list(map(widened, down)), activation="int8")(x, ids, weights, expected)
    assert torch.equal(got, expected)


def test_parts_of_the_inputs_add_up_to_the_bits_of_the_whole(kernels, isa):
    """A cut between any two units of 32 inputs, through super-groups too."""
    weight = random_weight("Q6_K", 40, 768)
    x = torch.randn(3, 768)
    whole = torch.empty(3, 40)
    kernels.linear(weight, activation="int8", segments=8)(x, whole)
    halves = []
    for columns in (slice(0, 384), slice(384, 768)):
        part = weight.columns(columns)
        out = torch.empty(3, 40)
        kernels.linear(part, activation="int8", segments=4)(x[:, columns], out)
        halves.append(out)
    assert torch.equal(halves[0] + halves[1], whole)


ONE_LEVEL = [
    (2, 32, False, False),
    (2, 128, True, False),
    (3, 768, False, False),
    (3, 128, True, True),
    (5, 96, True, False),
    (6, 128, False, True),
]
"""Bits, inputs that share a scale, whether groups have zero points, whether columns are permuted."""


@pytest.mark.parametrize(("bits", "group", "has_zeros", "ordered"), ONE_LEVEL)
def test_integers_of_few_bits_have_the_bits_of_wider_ones(kernels, isa, bits, group, has_zeros, ordered):
    n, k = 70, 768
    integers = torch.randint(0, 1 << bits, (n, k), dtype=torch.uint8)
    values = integers if bits > 4 else to_nibbles(integers)
    scale = (torch.rand(n, k // group) * 0.1).half()
    zeros = torch.randint(0, 1 << bits, scale.shape, dtype=torch.uint8) if has_zeros else None
    zero = 0 if has_zeros else 1 << (bits - 1)
    order = InputOrder.of(torch.randperm(k)) if ordered else None
    wide = IntGroups(8 if bits > 4 else 4, group, values, scale, None, zero, zeros, order)
    narrow = SuperGroups.of(wide, bits)
    assert torch.equal(narrow.dequantize(), wide.dequantize())
    order_bytes = k * 4 if ordered else 0
    assert narrow.nbytes == n * (k * bits // 8 + k // group * (3 if has_zeros else 2)) + order_bytes
    ids = torch.tensor([0, 69, 33])
    for activation in ("none", "int8"):
        segments = 4 if activation == "int8" else 1  # floats are added by whole groups of the wide weight
        mine = kernels.linear(narrow, activation=activation, segments=segments)
        other = kernels.linear(wide, activation=activation, segments=segments)
        for rows in (1, 7, 40):
            x = torch.randn(rows, k)
            got, expected = torch.empty(rows, n), torch.empty(rows, n)
            mine(x, got)
            other(x, expected)
            assert torch.equal(got, expected), (activation, rows)
        looked_up = torch.empty(3, k)
        mine.rows(ids, looked_up)
        assert torch.equal(looked_up, wide.dequantize()[ids])


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6])
def test_the_largest_integers_and_inputs_do_not_overflow(kernels, isa, bits, sign):
    """Sums of products may be kept in 16 bits: all terms are as large as they get, and have one sign."""
    n, k, largest = 40, 768, (1 << bits) - 1
    integers = torch.full((n, k), largest, dtype=torch.uint8)
    values = integers if bits > 4 else to_nibbles(integers)
    wide = IntGroups(8 if bits > 4 else 4, 32, values, torch.ones(n, k // 32).half(), None, 0)
    linear = kernels.linear(SuperGroups.of(wide, bits), activation="int8")
    for rows in (1, 4, 40):
        out = torch.empty(rows, n)
        linear(torch.full((rows, k), sign), out)
        torch.testing.assert_close(out, torch.full_like(out, sign * largest * k), rtol=1e-5, atol=0)


def test_integers_that_do_not_fit_are_refused():
    wide = IntGroups(8, 32, torch.full((2, 32), 8, dtype=torch.uint8), torch.ones(2, 1).half())
    with pytest.raises(ValueError, match="up to 8 do not fit 3 bits"):
        SuperGroups.of(wide, 3)


def test_activations_that_are_not_served_are_named(kernels):
    query = KernelQuery("linear", "cpu", "int4_super", "bf16", (64, 256), {"group_size": 32})
    (reason,) = kernels.supports(query)
    assert "none or int8" in str(reason)
