"""The helpers of Triton kernels give torch's bits under the interpreter."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from core_kernels.triton import portable

EVERY_BYTE = torch.arange(256).to(torch.uint8)


@triton.jit
def _cast(x, out, n: tl.constexpr):
    at = tl.arange(0, n)
    portable.store(out + at, tl.load(x + at))


@triton.jit
def _widen(x, out, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(out + at, portable.widen(tl.load(x + at)))


@triton.jit
def _unary(x, out, n: tl.constexpr, which: tl.constexpr):
    at = tl.arange(0, n)
    value = tl.load(x + at)
    if which == "encode_e4m3":
        result = portable.encode_e4m3(value)
    elif which == "encode_e5m2":
        result = portable.encode_e5m2(value)
    elif which == "decode_e4m3":
        result = portable.decode_e4m3(value)
    elif which == "decode_e5m2":
        result = portable.decode_e5m2(value)
    elif which == "sigmoid":
        result = portable.sigmoid(value)
    else:
        result = portable.tanh(value)
    tl.store(out + at, result)


@triton.jit
def _div(x, y, out, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(out + at, portable.div(tl.load(x + at), tl.load(y + at)))


@triton.jit
def _dot(a, b, acc, m: tl.constexpr, n: tl.constexpr, k: tl.constexpr):
    rows = tl.arange(0, m)[:, None]
    columns = tl.arange(0, n)[None, :]
    left = tl.load(a + rows * k + tl.arange(0, k)[None, :])
    right = tl.load(b + tl.arange(0, k)[:, None] * n + columns)
    place = acc + rows * n + columns
    tl.store(place, portable.dot(left, right, tl.load(place)))


def _unary_of(which: str, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(len(x), dtype=dtype)
    _unary[(1,)](x, out, n=len(x), which=which)
    return out


def _numbers() -> torch.Tensor:
    """Numbers of every size, ties between neighbours of the narrow types, and what is not a number."""
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (6144,), generator=generator).to(torch.int32)
    anything = bits.view(torch.float32)
    usual = torch.randn(1024, generator=generator)
    halves = (torch.arange(1016, dtype=torch.float32) - 508) / 1024  # ties of 8-bit floats among them
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 448.0, -464.0, 57344.0])
    return torch.cat((anything, usual, halves, special))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_stores_round_as_torch(dtype):
    x = _numbers()
    out = torch.empty(len(x), dtype=dtype)
    _cast[(1,)](x, out, n=len(x))
    expected = x.to(dtype)
    both_nan = out.isnan() & expected.isnan()
    integers = torch.int32 if dtype is torch.float32 else torch.int16
    same = out.view(integers) == expected.view(integers)
    assert bool((same | both_nan).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_16_bit_float_widens_exactly(dtype):
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    out = torch.empty(len(x))
    _widen[(1,)](x, out, n=len(x))
    np.testing.assert_array_equal(out.numpy(), x.float().numpy())


@pytest.mark.parametrize(
    "kind, dtype, largest", [("e4m3", torch.float8_e4m3fn, 448.0), ("e5m2", torch.float8_e5m2, 57344.0)]
)
def test_8_bit_floats_are_those_of_torch(kind, dtype, largest):
    x = _numbers()
    made = _unary_of(f"encode_{kind}", x, torch.uint8).view(dtype).float()
    expected = x.clamp(-largest, largest).to(dtype).float()
    np.testing.assert_array_equal(made.numpy(), expected.numpy())
    read = _unary_of(f"decode_{kind}", EVERY_BYTE, torch.float32)
    np.testing.assert_array_equal(read.numpy(), EVERY_BYTE.view(dtype).float().numpy())


def test_divisions_round_to_the_nearest():
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(2, 4096, generator=generator)
    out = torch.empty(4096)
    _div[(1,)](x, y, out, n=4096)
    assert torch.equal(out, x / y)


def test_smooth_functions_keep_their_digits():
    x = torch.cat((torch.linspace(-20, 20, 3072), torch.linspace(-1e-3, 1e-3, 1024)))
    exact = x.double()
    for which, expected in (("sigmoid", exact.sigmoid()), ("tanh", exact.tanh())):
        found = _unary_of(which, x, torch.float32).double()
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_products_are_rounded_once(dtype):
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(16, 64, generator=generator).to(dtype)
    b = torch.randn(64, 32, generator=generator).to(dtype)
    acc = torch.randn(16, 32, generator=generator)
    expected = acc + (a.double() @ b.double()).float()
    _dot[(1,)](a, b, acc, m=16, n=32, k=64)
    assert torch.equal(acc, expected)
