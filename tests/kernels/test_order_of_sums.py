"""A sum over inputs or experts that several computers share has the bits of the whole: parts are whole subtrees."""

import pytest
import torch

from core_runtime.layers.experts import combine
from core_runtime.weights.formats import Dense, IntGroups
from tests.kernels.test_native_experts import choice, dense, layer

ROWS = (1, 2, 7, 40)


def cut(weight, begin, end):
    """Columns of a plain or grouped weight."""
    if isinstance(weight, Dense):
        return Dense(weight.weight[:, begin:end].contiguous())
    stored = weight.bits * (end - begin) // 8
    values = weight.values[:, begin * weight.bits // 8 :][:, :stored].contiguous()
    scale = weight.scale[:, begin // weight.group_size : end // weight.group_size].contiguous()
    return IntGroups(weight.bits, weight.group_size, values, scale, None, weight.zero)


def weights(k):
    plain = torch.randn(70, k)
    packed = torch.randint(0, 256, (70, k // 2), dtype=torch.uint8)
    scale = (torch.rand(70, k // 32) * 0.01).half()
    return {
        "float32": (Dense(plain), "none"),
        "bfloat16": (Dense(plain.bfloat16()), "bf16"),
        "float16": (Dense(plain.half()), "none"),
        "4 bits, integer products": (IntGroups(4, 32, packed, scale, None, 8), "int8"),
        "4 bits, float products": (IntGroups(4, 32, packed, scale, None, 8), "none"),
    }


def product(kernels, weight, activation, x, segments):
    out = torch.empty(x.shape[0], weight.shape[0])
    kernels.linear(weight, activation=activation, segments=segments)(x, out)
    return out


def tree(parts):
    while len(parts) > 1:
        parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@pytest.mark.parametrize("form", weights(256))
def test_parts_of_the_inputs_add_up_to_the_bits_of_the_whole(kernels, isa, form):
    weight, activation = weights(256)[form]
    for rows in ROWS:
        x = torch.randn(rows, 256)
        whole = product(kernels, weight, activation, x, 8)
        for ranks in (2, 4, 8):
            width = 256 // ranks
            spans = [(rank * width, (rank + 1) * width) for rank in range(ranks)]
            parts = [product(kernels, cut(weight, *span), activation, x[:, slice(*span)], 8 // ranks) for span in spans]
            assert torch.equal(tree(parts), whole), (rows, ranks)


def test_inputs_that_do_not_divide_have_fewer_segments(kernels):
    """576 = 18 groups of 32: two segments of nine; a half is then one segment, whatever is asked for."""
    packed, scale = torch.randint(0, 256, (33, 288), dtype=torch.uint8), (torch.rand(33, 18) * 0.01).half()
    weight, x = IntGroups(4, 32, packed, scale, None, 8), torch.randn(3, 576)
    halves = [
        product(kernels, cut(weight, begin, begin + 288), "int8", x[:, begin : begin + 288], 1) for begin in (0, 288)
    ]
    assert torch.equal(halves[0] + halves[1], product(kernels, weight, "int8", x, 8))


def test_one_segment_is_one_sum(kernels):
    weight, x = Dense(torch.randn(40, 512)), torch.randn(5, 512)
    apart, exact = product(kernels, weight, "none", x, 1), x.double() @ weight.weight.double().T
    together = product(kernels, weight, "none", x, 8)
    assert not torch.equal(apart, together)
    torch.testing.assert_close(together.double(), exact, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("experts", [8, 6, 5])
def test_parts_of_the_experts_add_up_to_the_bits_of_the_whole(kernels, isa, experts):
    torch.manual_seed(3)
    built = layer(kernels, *dense(experts, 32, 48))
    x = torch.randn(9, 48)
    ids, shares = choice(9, experts, 3)
    whole, total = torch.empty(9, 48), torch.zeros(9, 48)
    built(x, ids, shares, whole)
    ranks = 2 if experts % 2 == 0 else 1
    for rank in range(ranks):
        here = ids * ranks // experts == rank
        part = torch.empty(9, 48)
        built(x, ids, torch.where(here, shares, 0.0), part)
        total += part
    assert torch.equal(total, whole)


@pytest.mark.parametrize("columns", [[2, 0, 1], [1, 2, 0]])
def test_the_order_in_which_a_router_names_experts_changes_nothing(kernels, columns):
    built = layer(kernels, *dense(16, 32, 48))
    x, (ids, shares) = torch.randn(4, 48), choice(4, 16, 3)
    one, other = torch.empty(4, 48), torch.empty(4, 48)
    built(x, ids, shares, one)
    built(x, ids[:, columns].contiguous(), shares[:, columns].contiguous(), other)
    assert torch.equal(one, other)
    parts = torch.randn(4, 3, 48)
    moved = combine(parts[:, columns], ids[:, columns], shares[:, columns], 16)
    assert torch.equal(combine(parts, ids, shares, 16), moved)
