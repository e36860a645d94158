"""Inputs rounded to 8-bit integers, and products of such, on Triton kernels."""

import pytest
import torch

from core.api.specs import KernelQuery
from core_kernels.triton.kernels import TritonKernels
from core_kernels.triton.products import tiles
from core_kernels.triton.products.linear import Int8Linear
from core_kernels.triton.products.rounding import encoded_rows, groups_of, rounded
from core_kit.fixtures.weights import random_weights
from core_kit.oracles.numbers import close
from core_runtime.layers.kernels import weight_format
from core_runtime.layers.reference import ReferenceKernels, floats8_activations, inputs_by_group, quantized_activations
from core_runtime.weights.formats import FP8, HasGroups, Int8Channel

KERNELS = TritonKernels()
REFERENCE = ReferenceKernels()
SHAPES = ((9, 128), (7, 77))


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _queried(weight, activation):
    attributes = {"group_size": weight.group_size} if isinstance(weight, HasGroups) else {}
    return KernelQuery("linear", "cuda", weight_format(weight), activation, weight.shape, attributes)


SERVED = [
    pytest.param(weight, activation, id=f"{weight_format(weight)} {weight.shape}, {number}, {activation}")
    for number, (shape, weight) in enumerate((shape, weight) for shape in SHAPES for weight in random_weights(shape))
    for activation in ("int8", "int8_row")
    if not KERNELS.supports(_queried(weight, activation))
]


@pytest.mark.parametrize(("weight", "activation"), SERVED)
def test_inputs_are_rounded_as_the_reference_rounds_them(weight, activation):
    """To the bit, in every format's groups."""
    k = weight.shape[1]
    x = _random(3, k + 8)[:, :k] * 3
    x[1] = 0
    groups = groups_of(weight, activation)
    if getattr(weight, "order", None) is not None:
        pytest.skip("its inputs lie in another order")
    if groups is None:
        assert rounded(x, groups) is x
        return
    expected = quantized_activations(x, k) if activation == "int8_row" else inputs_by_group(x, weight)
    assert torch.equal(rounded(x, groups), expected)


def test_a_row_becomes_integers_and_one_scale():
    x = _random(4, 100).bfloat16()
    x[2] = 0
    codes, scales = encoded_rows(x)
    expected = quantized_activations(x, 100)
    assert codes.dtype is torch.int8 and codes.abs().amax(1).tolist() == [127, 127, 0, 127]
    assert torch.equal(codes.float() * scales[:, None], expected)


@pytest.mark.parametrize("shape", [(33, 128), (70, 77)], ids=str)
def test_products_of_integers_equal_the_reference(shape):
    n, k = shape
    values = torch.randint(-127, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(1))
    weight = Int8Channel(values, _random(n, 1, seed=2).abs() * 0.01 + 0.001)
    shift = _random(n, seed=3)
    mine = KERNELS.linear(weight, activation="int8_row", bias=shift)
    reference = REFERENCE.linear(weight, activation="int8_row", bias=shift)
    assert isinstance(mine, Int8Linear)
    _equal(mine, reference, _random(70, k), n, "int8 times int8")


def _equal(mine, reference, x, outputs, what):
    """Both compute the same, into a part of wider rows too; a row has the same bits alone."""
    for accumulate in (False, True):
        got, expected = torch.ones(len(x), outputs + 4)[:, :outputs], torch.ones(len(x), outputs)
        mine(x, got, accumulate=accumulate)
        reference(x, expected, accumulate=accumulate)
        close(got, expected, 1e-5, what)
    together = torch.empty(len(x), outputs)
    mine(x, together)
    for rows in (1, 17):
        some = torch.empty(rows, outputs)
        mine(x[:rows], some)
        assert torch.equal(some, together[:rows])


def test_a_row_becomes_8_bit_floats_and_one_scale():
    x = _random(4, 100).bfloat16()
    x[2] = 0
    codes, scales = encoded_rows(x, floats=True)
    read = codes.view(torch.float8_e4m3fn).float()
    assert read.abs().amax(1).tolist() == [448, 448, 0, 448]
    assert torch.equal(read * scales[:, None], floats8_activations(x))


@pytest.mark.parametrize(
    ("shape", "block"), [((33, 256), None), ((20, 77), (16, 32))], ids=["scales of rows", "of blocks"]
)
def test_products_of_8_bit_floats_equal_the_reference(shape, block, monkeypatch):
    monkeypatch.setattr(tiles, "SEGMENT_INPUTS", 64)
    n, k = shape
    values = _random(n, k, seed=1).to(torch.float8_e4m3fn)
    scale = _random(n, 1, seed=2) if block is None else _random(-(-n // 16), -(-k // 32), seed=2)
    weight = FP8.from_scale(values, scale.abs() + 0.1, block)
    shift = _random(n, seed=3)
    mine = KERNELS.linear(weight, activation="fp8_row", bias=shift)
    reference = REFERENCE.linear(weight, activation="fp8_row", bias=shift)
    _equal(mine, reference, _random(70, k), n, "e4m3 times e4m3")


def test_other_weights_have_no_inputs_of_8_bit_floats():
    for weight in random_weights((33, 128)):
        reasons = KERNELS.supports(_queried(weight, "fp8_row"))
        assert bool(reasons) == (weight_format(weight) != "fp8_e4m3")
