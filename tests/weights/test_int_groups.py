"""Zero points as bytes, bfloat16 scales and the order of inputs of integer groups, against a loop over the definition."""

import pytest
import torch

from core_runtime.weights.formats import IntGroups, can_fuse, fuse
from core_runtime.weights.input_order import InputOrder


def make(bits=4, n=6, k=64, group=32, order=None, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(7)
    values = torch.randint(0, 256, (n, k * bits // 8), dtype=torch.uint8, generator=generator)
    scale = torch.rand(n, k // group, generator=generator) + 0.1
    zeros = torch.randint(0, 1 << bits, (n, k // group), dtype=torch.uint8, generator=generator)
    return IntGroups(bits, group, values, scale.to(dtype), zeros=zeros, order=order)


def shuffled(count, seed=1):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", [4, 8])
def test_the_values_are_those_of_the_definition(bits):
    order = shuffled(64)
    weight = make(bits, order=InputOrder.of(order))
    integers = weight.unpacked()
    want = torch.zeros(6, 64)
    for n in range(6):
        for k in range(64):
            scale = float(weight.scale[n, k // 32])
            want[n, order[k]] = scale * (int(integers[n, k]) - int(weight.zeros[n, k // 32]))
    assert torch.equal(weight.dequantize(), want)


def test_rows_and_columns_keep_their_zero_points():
    weight = make()
    whole = weight.dequantize()
    assert torch.equal(weight.rows(torch.tensor([4, 0])).dequantize(), whole[[4, 0]])
    assert torch.equal(weight.columns(slice(32, 64)).dequantize(), whole[:, 32:])
    assert weight.nbytes == 6 * 32 + 6 * 2 * 2 + 6 * 2
    assert torch.equal(fuse([weight, weight]).dequantize(), torch.cat([whole, whole]))
    signed = IntGroups(4, 32, weight.values, weight.scale, zero=8)
    assert not can_fuse([weight, signed])


def test_orders_are_equal_by_value_and_decide_about_fusing():
    order = shuffled(64)
    weight = make(order=InputOrder.of(order))
    same = make(order=InputOrder.of(order.clone().int()))
    other = make(order=InputOrder.of(shuffled(64, seed=2)))
    assert weight.order == same.order and hash(weight.order) == hash(same.order)
    assert can_fuse([weight, same]) and not can_fuse([weight, other]) and not can_fuse([weight, make()])
    both = fuse([weight, same])
    assert torch.equal(both.dequantize(), torch.cat([weight.dequantize(), weight.dequantize()]))
    assert torch.equal(weight.rows(slice(2, 4)).dequantize(), weight.dequantize()[2:4])
    assert weight.nbytes == make().nbytes + 64 * 4
    with pytest.raises(NotImplementedError, match=r"order of inputs .* cannot be cut along its inputs"):
        weight.columns(slice(0, 32))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"zero": 8}, "zeros beside a minimum or the zero 8"),
        ({"minimum": torch.zeros(6, 2)}, "zeros beside a minimum"),
        ({"zeros": torch.zeros(6, 3, dtype=torch.uint8)}, r"it needs uint8 \(6, 2\)"),
        ({"zeros": torch.zeros(6, 2)}, r"zeros torch.float32"),
        ({"scale": torch.zeros(6, 2).double()}, "got scale torch.float64"),
        ({"order": InputOrder.of(torch.arange(32))}, "an order of 32 inputs; it needs 64"),
    ],
)
def test_what_does_not_fit_is_refused_by_a_sentence(fields, words):
    weight = make()
    given = {"scale": weight.scale, "zeros": weight.zeros, **fields}
    with pytest.raises(ValueError, match=words):
        IntGroups(4, 32, weight.values, **given)


@pytest.mark.parametrize("wrong", [[0, 1, 1], [0, 1, 3], [-1, 0, 1], [[0, 1], [2, 3]]])
def test_an_order_names_each_input_once(wrong):
    with pytest.raises(ValueError, match="does not name each"):
        InputOrder.of(torch.tensor(wrong))
