"""Linear layers of the Triton kernels: every format equals the reference, and a row's bits do not depend on the others."""

import pytest
import torch
from triton.runtime.interpreter import interpreter_builder

from core_kernels.triton.kernels import TritonKernels
from core_kernels.triton.products import tiles as product_tiles
from core_kit.fixtures.weights import random_weights
from core_kit.oracles.numbers import close
from core_runtime.layers.kernels import weight_format
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.weights.formats import FP8, Dense, IntGroups
from core_runtime.weights.input_order import InputOrder

KERNELS = TritonKernels()
REFERENCE = ReferenceKernels()
WEIGHTS = list(random_weights((33, 128)))
QUICK = (2, 3, 8, 15)
"""Some of them, for what `make gpu-interpreter` tries with all."""


def _named(weight) -> str:
    groups = getattr(weight, "group_size", 0)
    minimum = getattr(weight, "minimum", None) is not None
    return f"{weight_format(weight)}, groups of {groups}{', minimum' if minimum else ''}"


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _compare(weight, dtype: torch.dtype, rows: int, tolerance: float, bias: bool = False) -> None:
    n, k = weight.shape
    x = _random(rows, k + 8).to(dtype)[:, :k]
    shift = _random(n, seed=3) if bias else None
    mine = KERNELS.linear(weight, activation="none", bias=shift)
    for accumulate in (False, True):
        got = _random(rows, n + 4, seed=4).to(dtype)[:, :n]
        start = got.double()
        product = x.double() @ weight.dequantize().to(dtype).double().T
        expected = product + (start if accumulate else 0) + (shift.double() if bias else 0)
        mine(x, got, accumulate=accumulate)
        close(got.float(), expected.float(), tolerance, _named(weight))


@pytest.mark.parametrize("weight", WEIGHTS, ids=_named)
def test_every_format(weight):
    _compare(weight, torch.bfloat16, 5, 1e-2, bias=True)


@pytest.mark.gpu_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(33, 128), (130, 96), (7, 77), (64, 1024)], ids=str)
def test_every_format_in_every_shape(shape, dtype):
    for weight in random_weights(shape):
        _compare(weight, dtype, 17, 2e-5 if dtype is torch.float32 else 2e-3)


@pytest.mark.parametrize("weight", WEIGHTS, ids=_named)
def test_rows_of_every_format(weight):
    ids = torch.tensor([0, 32, 16, 16])
    out = torch.full((4, 128), torch.nan)
    KERNELS.linear(weight, activation="none").rows(ids, out)
    torch.testing.assert_close(out, weight.rows(ids).dequantize(), rtol=1e-6, atol=1e-7)


def test_odd_sizes_and_types():
    _compare(Dense(_random(7, 77)), torch.float32, 3, 1e-5)
    _compare(Dense(_random(130, 96).half()), torch.float16, 3, 2e-3)
    zeros = torch.randint(0, 16, (9, 2), dtype=torch.uint8)
    values = torch.randint(0, 256, (9, 32), dtype=torch.uint8)
    scale = _random(9, 2).bfloat16()
    _compare(IntGroups(4, 32, values, scale, zeros=zeros), torch.bfloat16, 2, 1e-2)


def test_stored_order_of_inputs():
    values = torch.randint(0, 256, (9, 64), dtype=torch.uint8)
    order = InputOrder.of(torch.randperm(64, generator=torch.Generator().manual_seed(5)))
    weight = IntGroups(8, 32, values, _random(9, 2), zero=128, order=order)
    _compare(weight, torch.float32, 3, 1e-5)
    out = torch.empty(2, 64)
    ids = torch.tensor([8, 1])
    KERNELS.linear(weight, activation="none").rows(ids, out)
    torch.testing.assert_close(out, weight.rows(ids).dequantize())


def test_inputs_are_rounded_to_bfloat16_where_asked():
    weight = Dense(_random(20, 64).bfloat16())
    x = _random(3, 64, seed=1)
    got, expected = torch.empty(3, 20), torch.empty(3, 20)
    KERNELS.linear(weight, activation="bf16")(x, got)
    expected = (x.bfloat16().double() @ weight.dequantize().double().T).float()
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("index", QUICK, ids=lambda index: _named(WEIGHTS[index]))
def test_a_row_has_the_same_bits_alone_and_among_others(index):
    kernel = KERNELS.linear(WEIGHTS[index], activation="none")
    x = _random(70, 128).bfloat16()
    together = torch.empty(70, 33)
    kernel(x, together)
    for rows in (1, 7, 64):
        some = torch.empty(rows, 33)
        kernel(x[:rows], some)
        assert torch.equal(some, together[:rows])


def test_segments_give_the_same_bits_in_one_kernel_and_in_two(monkeypatch):
    monkeypatch.setattr(product_tiles, "SEGMENT_INPUTS", 64)
    assert product_tiles.segments_of(33, 512) == 8
    kernel = KERNELS.linear(Dense(_random(33, 512).bfloat16()), activation="none", bias=_random(33))
    x = _random(65, 512).bfloat16()
    together = torch.ones(65, 33)
    kernel(x, together, accumulate=True)
    for rows in (1, 64):
        some = torch.ones(rows, 33)
        kernel(x[:rows], some, accumulate=True)
        assert torch.equal(some, together[:rows])


@pytest.mark.parametrize("order", ["first to last", "last to first"])
def test_segments_are_joined_in_their_order_whichever_comes_last(monkeypatch, order):
    monkeypatch.setattr(product_tiles, "SEGMENT_INPUTS", 64)
    kernel = KERNELS.linear(Dense(_random(33, 512).bfloat16()), activation="none")
    x = _random(65, 512).bfloat16()
    together = torch.empty(65, 33)
    kernel(x, together)
    if order == "last to first":
        place = interpreter_builder.set_grid_idx
        monkeypatch.setattr(interpreter_builder, "set_grid_idx", lambda x, y, z: place(x, 7 - y, z))
    for _ in range(2):  # the counters are as before
        some = torch.full((17, 33), torch.nan)
        kernel(x[:17], some)
        assert torch.equal(some, together[:17])
        assert not kernel.weight.counters.any()


def _compare_gated(weight, dtype: torch.dtype, activation: str, rows: int, precision: str = "none") -> None:
    n, k = weight.shape
    kernel = KERNELS.linear(weight, activation=precision, bias=_random(n, seed=3))
    x = _random(rows, k).to(dtype)
    both = torch.empty(rows, n, dtype=dtype)
    kernel(x, both)
    expected, got = torch.empty(2, rows, n // 2, dtype=dtype)
    KERNELS.gated(both, activation, expected)
    kernel.gated(x, activation, got.fill_(torch.nan))
    assert torch.equal(got, expected), _named(weight)


def _quick(index: int) -> tuple:
    return () if index in QUICK else (pytest.mark.gpu_interpreter,)


@pytest.mark.parametrize("index", [pytest.param(index, marks=_quick(index)) for index in range(len(WEIGHTS))])
def test_a_gate_in_the_product_has_the_bits_of_two_calls(index):
    _compare_gated(list(random_weights((34, 128)))[index], torch.bfloat16, "silu", 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("activation", ["gelu_tanh", "relu2", "clamped_swiglu:1.702:7"])
def test_gates_of_every_kind(activation, dtype):
    _compare_gated(Dense(_random(130, 77).to(dtype)), dtype, activation, 3)
    assert KERNELS.linear(Dense(_random(33, 64)), activation="none").gated is None


def test_a_gate_after_segments(monkeypatch):
    monkeypatch.setattr(product_tiles, "SEGMENT_INPUTS", 64)
    weight = Dense(_random(66, 512).bfloat16())
    for rows in (2, 70):
        _compare_gated(weight, torch.bfloat16, "silu", rows)


def test_a_gate_after_segments_and_scales_of_both_sides(monkeypatch):
    monkeypatch.setattr(product_tiles, "SEGMENT_INPUTS", 64)
    values = _random(66, 512).to(torch.float8_e4m3fn)
    weight = FP8.from_scale(values, _random(66, 1, seed=2).abs() + 0.1)
    for rows in (2, 70):
        _compare_gated(weight, torch.bfloat16, "silu", rows, precision="fp8_row")


def test_what_is_not_served_is_refused():
    from core.api.specs import KernelQuery

    assert KERNELS.supports(KernelQuery("linear", "cuda", "no_such_format", "none", (64, 64)))
    assert KERNELS.supports(KernelQuery("linear", "cuda", "int8_groups", "int8", (64, 100), {"group_size": 64}))
    assert KERNELS.supports(KernelQuery("linear", "tpu", "bfloat16", "none", (64, 64)))
    odd = KernelQuery("linear", "cuda", "fp8_e4m3", "none", (64, 100), {"group_size": 24})
    assert KERNELS.supports(odd)
    assert not KERNELS.supports(KernelQuery("linear", "cuda", "int4_groups", "none", (64, 128), {"group_size": 32}))
