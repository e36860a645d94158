"""Kernels are compiled here: in Triton's interpreter, all other tests of this folder would pass and say nothing of a GPU."""

import pytest
import torch
import triton
import triton.language as tl

from core_kernels.triton import norm, portable
from core_kernels.triton.compiling.catalog import function_of, kernel_rows
from core_kernels.triton.compiling.launch import architecture_of
from core_kernels.triton.products import codes
from core_kernels.triton.products.packed import Form

pytestmark = pytest.mark.gpu


def test_no_kernel_is_interpreted() -> None:
    assert not portable.INTERPRETED.value
    functions = {row.function: function_of(row) for row in kernel_rows()}
    assert [name for name, function in functions.items() if not isinstance(function, triton.JITFunction)] == []


def test_a_launch_runs_code_of_this_chip(device: torch.device) -> None:
    x = torch.randn(3, 64, device=device)
    out = torch.full_like(x, torch.nan)
    norm.norm_rows(x, torch.ones(64, device=device), None, 1e-5, out, centred=False)
    expected = x / (x.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(out, expected)
    compiled = [kernel for kernels, *_ in norm.normalize.device_caches.values() for kernel in kernels.values()]
    assert compiled and all("cubin" in kernel.asm or "hsaco" in kernel.asm for kernel in compiled)


@triton.jit
def _decode(raw, zero, out, field: tl.constexpr, FORM: tl.constexpr, DECODING: tl.constexpr):
    at = tl.arange(0, 256)
    found = codes.decoded(tl.load(raw + at), tl.load(zero), field, FORM, tl.bfloat16, DECODING)
    tl.store(out + at, found)


@pytest.mark.parametrize("code", ["e4m3", "e5m2", "int8", "int", "e2m1"])
def test_every_code_of_a_weight_is_decoded_as_without_instructions_for_it(device: torch.device, code: str) -> None:
    form = Form(code, 4 if code in ("int", "e2m1") else 8)
    raw = torch.arange(256, device=device).to(torch.uint8)
    zero = torch.tensor([8 if code == "int" else 0], dtype=torch.int32, device=device)
    found = []
    for decoding in ("portable", codes.decoding_for(architecture_of(device), code)):
        out = torch.empty(256, dtype=torch.bfloat16, device=device)
        _decode[(1,)](raw, zero, out, field=form.fields - 1, FORM=form, DECODING=decoding)
        found.append(out)
    portable_bits, own_bits = (out.view(torch.int16)[~out.isnan()] for out in found)
    assert torch.equal(found[0].isnan(), found[1].isnan())
    assert torch.equal(portable_bits, own_bits)
