"""Packed products of int8 channels, fp8 and 4-bit codebooks, on every instruction set."""

from dataclasses import dataclass

import pytest
import torch

from core_runtime.weights.codebook import CODES
from core_runtime.weights.formats import FP8, Codebook, Int8Channel
from tests.kernels.linear_check import check

SHAPES = [(64, 64), (1, 1), (33, 577), (70, 130)]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def int8_channel(n, k):
    values = torch.randint(-128, 128, (n, k), dtype=torch.int8)
    return Int8Channel(values, torch.rand(n, 1) * 0.01 + 0.001)


def fp8(n, k, dtype, block=None):
    """Every finite number is drawn, those below the normal ones included."""
    bits = torch.arange(256, dtype=torch.uint8)
    bits = bits[bits.view(dtype).float().isfinite()]
    values = bits[torch.randint(0, len(bits), (n, k))].view(dtype)
    if block is None:
        return FP8.from_scale(values, torch.rand(n) * 0.01 + 0.001)
    return FP8.from_scale(values, torch.rand(-(-n // block[0]), -(-k // block[1])) * 0.01 + 0.001, block)


def codebook(kind, n, k, block=None):
    block = block or {"mxfp4": 32, "nvfp4": 16}.get(kind, 64)
    values = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    scale = torch.rand(n, k // block) * 0.1 + 0.01
    if kind == "mxfp4":
        return Codebook(kind, block, values, torch.randint(118, 124, scale.shape, dtype=torch.uint8))
    if kind == "nvfp4":
        return Codebook(kind, block, values, (scale * 100).to(E4M3), torch.rand(n, 1))
    return Codebook(kind, block, values, scale)


@pytest.mark.parametrize("activation", ["none", "int8_row"])
@pytest.mark.parametrize(("n", "k"), [*SHAPES, (32, 1536)])
def test_int8_channels(kernels, isa, activation, n, k):
    check(kernels, int8_channel(n, k), activation)


def test_int8_sums_are_exact_where_16_bits_would_saturate(kernels, isa):
    """All products of the same sign, at their largest, over many inputs."""
    weight = Int8Channel(torch.full((40, 6144), -128, dtype=torch.int8), torch.ones(40, 1))
    linear, out = kernels.linear(weight, activation="int8_row"), torch.empty(2, 40)
    linear(torch.full((2, 6144), 127.0), out)
    assert (out == -128.0 * 127 * 6144).all()


@pytest.mark.parametrize("activation", ["none", "bf16"])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("block", [None, (128, 128), (1, 32)])
@pytest.mark.parametrize(("n", "k"), [*SHAPES, (130, 384)])
def test_fp8(kernels, isa, activation, dtype, block, n, k):
    check(kernels, fp8(n, k, dtype, block), activation, rows=7)


@dataclass
class Rounded:
    """The table is rounded to bf16 together with the inputs."""

    weight: Codebook

    def dequantize(self):
        table = torch.tensor(CODES[self.weight.kind])
        other = self.weight.dequantize().view(*self.weight.scale.shape, -1) / self.weight.wide_scale().unsqueeze(-1)
        nearest = (other.unsqueeze(-1) - table).abs().argmin(-1)
        return (table.bfloat16().double()[nearest] * self.weight.wide_scale().unsqueeze(-1)).view(self.weight.shape)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("block", [16, 64, 128])
def test_tables_of_floats(kernels, isa, kind, block):
    for n, k in ((1, block), (33, 3 * block), (70, 640)):
        weight = codebook(kind, n, k, block)
        check(kernels, weight, "none", rows=7)
        check(kernels, weight, "bf16", rows=13, product_weight=Rounded(weight))


@pytest.mark.parametrize("activation", ["none", "bf16", "int8"])
@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4"])
def test_microscaling(kernels, isa, kind, activation):
    for n, k in ((1, 32), (33, 96), (70, 640)):
        check(kernels, codebook(kind, n, k), activation, rows=7)


WEIGHTS = {
    "int8_row": (lambda: int8_channel(130, 577), "int8_row"),
    "fp8": (lambda: fp8(130, 577, E4M3), "bf16"),
    "fp8 blocks": (lambda: fp8(130, 577, E4M3, (128, 128)), "bf16"),
    "nf4": (lambda: codebook("nf4", 130, 576), "bf16"),
    "mxfp4": (lambda: codebook("mxfp4", 130, 576), "int8"),
    "nvfp4": (lambda: codebook("nvfp4", 130, 576), "int8"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_bits_do_not_depend_on_threads_or_chunks(native, kernels, isa, name):
    make, activation = WEIGHTS[name]
    weight = make()
    linear = kernels.linear(weight, activation=activation)
    n, k = weight.shape
    x, whole = torch.randn(300, k), torch.empty(300, n)
    native.pool_init(2)
    linear(x, whole)
    native.pool_init(1)
    for rows in (1, 2, 5, 12, 97):
        part = torch.empty(rows, n)
        linear(x[300 - rows :], part)
        assert torch.equal(part, whole[300 - rows :])
    native.pool_init(2)


def test_packed_weights_take_the_memory_of_the_canonical_ones(kernels):
    for make, activation in WEIGHTS.values():
        full = make().rows(torch.arange(128))
        linear, (n, k) = kernels.linear(full, activation=activation), full.shape
        assert linear.nbytes == full.nbytes + (n * (-k % full.group_size) or n * (-k % 4))


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_scales_and_values_that_are_not_finite_are_refused(kernels, broken):
    weight = int8_channel(4, 8)
    weight.scale[2] = broken
    with pytest.raises(ValueError, match=r"scale of a int8_channel weight of shape \(4, 8\) .* not finite"):
        kernels.linear(weight, activation="int8_row")
    floats = FP8.from_scale(torch.tensor([[1.0, float("nan")]]).to(E4M3), torch.ones(1))
    with pytest.raises(ValueError, match=r"fp8_e4m3 weight .* not finite"):
        kernels.linear(floats, activation="bf16")
    micro = codebook("mxfp4", 4, 32)
    micro.scale[0] = 255
    with pytest.raises(ValueError, match=r"mxfp4 weight .* not finite"):
        kernels.linear(micro, activation="int8")


def test_zeros_large_inputs_and_empty_batches(kernels):
    for make, activation in WEIGHTS.values():
        weight = make()
        linear, (n, k) = kernels.linear(weight, activation=activation), weight.shape
        x, out = torch.zeros(2, k), torch.full((2, n), 9.0)
        x[1] = 1e25
        linear(x, out)
        assert (out[0] == 0).all() and out.isfinite().all()
        linear(torch.empty(0, k), torch.empty(0, n))
