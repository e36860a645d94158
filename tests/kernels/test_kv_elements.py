"""Every code of the 8-bit KV types is read as torch reads it, and every float is stored as torch stores it."""

import pytest
import torch

from core.api.specs import AttentionSpec
from core_attention.cpu_paged.backend import CpuPagedAttention
from tests.attention.test_backends import view_of

KINDS = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2, "float16": torch.float16}
SPEC = AttentionSpec(1, 1, 16, 16, 1.0)


def cache(dtype, rows):
    backend = CpuPagedAttention()
    raw = torch.zeros(1, backend.kv_layout(SPEC, rows, dtype).block_bytes, dtype=torch.uint8)
    return backend, raw, backend.bind(SPEC, rows, dtype, raw), backend.build(view_of([rows], [rows], [[0]], rows))


@pytest.mark.parametrize("dtype", KINDS)
def test_floats_are_rounded_as_torch_rounds_them(kernels, isa, dtype):
    kind = KINDS[dtype]
    most = torch.finfo(kind).max
    whole = torch.randn(16 * 4096) * torch.exp2(torch.randint(-26, 18, (16 * 4096,)))
    codes = torch.arange(256, dtype=torch.uint8).view(KINDS["fp8_e4m3" if dtype == "float16" else dtype]).float()
    ties = (codes[:-1] + codes[1:]) / 2
    x = torch.cat([whole, codes, ties, torch.tensor([0.0, -0.0, 1e30, -1e30, most])])
    x = torch.cat([x, torch.zeros(-len(x) % 256)]).view(-1, 1, 16)
    backend, raw, layer, metadata = cache(dtype, len(x))
    backend.write(layer, x, x, metadata)
    values = raw[0, raw.shape[1] // 2 :].view(torch.uint8 if kind.itemsize == 1 else torch.int16)
    stored = values.view(-1, 16, 2).transpose(1, 2) if kind.itemsize == 1 else values.view(-1, 16)
    got, want = stored.reshape(-1, 16).contiguous().view(kind).float(), x[:, 0].clamp(-most, most).to(kind).float()
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2", "int8_per_token_head"])
def test_every_code_is_read_as_torch_reads_it(kernels, isa, dtype):
    """One key with the weight 1: the output is the value."""
    backend, raw, layer, metadata = cache(dtype, 16)
    codes = torch.arange(256, dtype=torch.uint8).view(16, 16)
    zeros = torch.zeros(16, 1, 16)
    for row in range(16):
        backend.write(layer, zeros, zeros, metadata)
        values = raw[0, 256:512].view(8, 16, 2)
        values[0, :, 0] = codes[row]
        if dtype.startswith("int8"):
            raw[0, 512:].view(torch.float32)[:] = 1
        out = torch.empty(1, 1, 16)
        backend.forward(layer, torch.ones(1, 1, 16), backend.build(view_of([1], [1], [[0]], 16)), out)
        want = codes[row].view(torch.int8 if dtype.startswith("int8") else KINDS[dtype]).float()
        finite = want.isfinite()
        assert torch.equal(out[0, 0][finite], want[finite])
        assert not out[0, 0][~finite].isfinite().any()
