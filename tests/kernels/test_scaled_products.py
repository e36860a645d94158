"""Products of 8-bit floats with rounded inputs, by torch (which computes them on a processor too) and by DeepGEMM."""

import importlib.util
import sys

import pytest
import torch

from core.api.specs import KernelQuery
from core_kernels.scaled import deep_gemm_manifest, manifest
from core_kernels.scaled.limits import lacking_blocks, lacking_rows
from core_kernels.scaled.linear import BlockScaled, RowScaled, encoded, has_whole_blocks
from core_kit.oracles.numbers import close
from core_runtime.weights.formats import FP8
from tests.kernels.libraries import deep_gemm

KINDS = {"one scale a row": (RowScaled, (96, 64), None), "blocks": (BlockScaled, (192, 256), (128, 128))}


@pytest.fixture
def library(monkeypatch):
    """DeepGEMM's stand-in."""
    monkeypatch.setitem(sys.modules, "deep_gemm", deep_gemm)
    found = importlib.util.find_spec
    there = deep_gemm.__spec__
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, p=None: there if n == "deep_gemm" else found(n))


def weight_of(shape, block):
    random = torch.Generator().manual_seed(1)
    values = torch.randn(shape, generator=random).to(torch.float8_e4m3fn)
    rows = -(-shape[0] // 128), -(-shape[1] // 128)
    scale = torch.rand(rows if block else (shape[0], 1), generator=random) * 0.01 + 0.001
    return FP8.from_scale(values, scale, block)


class Few:
    """Triton's kernel, which computes nothing here."""

    nbytes = 7

    def __init__(self):
        self.rows_seen = []

    def __call__(self, x, out, *, accumulate=False):
        self.rows_seen.append(len(x))


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_many_rows_are_products_of_rounded_inputs(library, kind, bias, accumulate):
    make, shape, block = KINDS[kind]
    weight, few = weight_of(shape, block), Few()
    random = torch.Generator().manual_seed(2)
    added = torch.randn(shape[0], generator=random).bfloat16() if bias else None
    kernel = make(weight, added, few, 64)
    x = torch.randn(80, shape[1], generator=random).bfloat16() * torch.rand(80, 1, generator=random).bfloat16()
    x[3] = 0
    out = torch.randn(80, shape[0] + 8, generator=random).bfloat16()[:, : shape[0]]
    start = out.clone()
    kernel(x[:64], out[:64])
    kernel(x, out, accumulate=accumulate)
    codes, scales = encoded(x)
    expected = (codes.float() * scales) @ weight.dequantize().T + (0 if added is None else added.float())
    close(out.float(), expected + (start.float() if accumulate else 0), 2e-2, kind)
    assert few.rows_seen == [64]


def test_inputs_are_rounded_by_row():
    x = torch.tensor([[1.0, -3.5, 0.0], [0.0, 0.0, 0.0], [1e-3, 2e-3, 1e-3]])
    codes, scales = encoded(x)
    assert scales[:, 0].tolist() == pytest.approx([3.5 / 448, 0, 2e-3 / 448])
    assert codes.float()[:, 1].tolist() == [-448.0, 0.0, 448.0]
    assert (codes.float() * scales - x).abs().max() < 3.5 / 16


def test_rows_that_cut_blocks_are_found():
    whole = weight_of((256, 256), (128, 128))
    assert has_whole_blocks(whole)
    assert not has_whole_blocks(whole.rows(slice(64, 256)))


@pytest.mark.parametrize(
    "lacking, changed, words",
    [
        (lacking_rows, {}, None),
        (lacking_rows, {"format": "bfloat16"}, "format"),
        (lacking_rows, {"activation": "none"}, "activation: needs fp8_row"),
        (lacking_rows, {"shape": (33, 64)}, "multiples of 16"),
        (lacking_rows, {"attributes": {"group_size": 128}, "shape": (64, 256)}, "one scale a row"),
        (lacking_rows, {"op": "rms_norm"}, "op"),
        (lacking_rows, {"device": "rocm"}, "device"),
        (lacking_rows, {"attributes": {"group_size": 64, "profile": "sm_80"}}, "got sm_80"),
        (lacking_blocks, {"attributes": {"group_size": 128}, "shape": (64, 256)}, None),
        (lacking_blocks, {"attributes": {"group_size": 128, "profile": "sm_120"}}, "got sm_120"),
        (lacking_blocks, {}, "group_size: needs 128"),
    ],
)
def test_what_each_serves(library, lacking, changed, words):
    asked = {"op": "linear", "device": "cuda", "format": "fp8_e4m3", "activation": "fp8_row", "shape": (64, 64)}
    found = [str(reason) for reason in lacking(KernelQuery(**(asked | {"attributes": {"group_size": 64}} | changed)))]
    assert not found if words is None else any(words in sentence for sentence in found)


def test_without_deep_gemm():
    query = KernelQuery("linear", "cuda")
    assert not manifest.core_supports(query)
    assert any("deepseek-ai/DeepGEMM" in str(reason) for reason in deep_gemm_manifest.core_supports(query))
