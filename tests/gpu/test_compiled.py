"""Kernels are compiled here: in Triton's interpreter, all other tests of this folder would pass and say nothing of a GPU."""

import pytest
import torch
import triton

from core_kernels.triton import norm, portable
from core_kernels.triton.compiling.catalog import function_of, kernel_rows

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
