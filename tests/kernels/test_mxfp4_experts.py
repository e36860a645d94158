"""Experts in MXFP4 by the library triton_kernels, over a package with its published signatures."""

import sys
from pathlib import Path

import pytest
import torch

from core.api.errors import UserError
from core.api.specs import KernelQuery
from core_config.resolve import resolve
from core_kernels.mxfp4 import manifest
from core_kernels.mxfp4.kernels import LibraryKernels
from core_kernels.mxfp4.limits import lacking
from core_kit.oracles.numbers import close
from core_runtime.layers.experts import ReferenceExperts
from core_runtime.layers.linear import Linear
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.weights.codebook import Codebook
from core_runtime.weights.experts import Experts
from tests.configuration.test_batch_invariant import PLATFORM
from tests.tiny_models import save_checkpoint

COUNT, HIDDEN, INNER = 8, 128, 64
REFERENCE = ReferenceKernels()
FACTS = {"dtype": "bfloat16", "profile": "sm_90"}
LIBRARIES = Path(__file__).parent / "libraries"


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton_kernels"]:
        del sys.modules[name]


@pytest.fixture
def package(monkeypatch):
    """A function that makes the package in a folder the one that is found."""
    forget()
    yield monkeypatch.syspath_prepend
    forget()


def weight(rows, inputs, seed):
    random = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 256, (COUNT * rows, inputs // 2), dtype=torch.uint8, generator=random)
    scale = torch.randint(120, 126, (COUNT * rows, inputs // 32), dtype=torch.uint8, generator=random)
    return Experts(Codebook("mxfp4", 32, values, scale), COUNT)


def random_biases():
    random = torch.Generator().manual_seed(5)
    return tuple(torch.randn(COUNT, size, generator=random).bfloat16() for size in (2 * INNER, HIDDEN))


def reference(gate_up, down, biases, activation):
    """The experts of a layer in torch, with their biases."""
    sides = []
    for side, bias in zip((gate_up, down), biases or (None, None), strict=True):
        kernels = [
            REFERENCE.linear(side.expert(at), activation="none", bias=None if bias is None else bias[at])
            for at in range(COUNT)
        ]
        sides.append([Linear([kernel]) for kernel in kernels])
    return ReferenceExperts(*sides, activation, REFERENCE.gated)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("activation", ["clamped_swiglu:1.702:7", "clamped_swiglu:1.3:0.5", "silu"])
def test_experts_are_those_of_the_reference(package, activation, biased):
    package(LIBRARIES)
    gate_up, down = weight(2 * INNER, HIDDEN, 1), weight(HIDDEN, INNER, 2)
    biases = random_biases() if biased else None
    expected_layer = reference(gate_up, down, biases, activation)
    kernels = LibraryKernels(FACTS)
    options = {"precision": "none", "gated": REFERENCE.gated, "biases": biases}
    layer = kernels.grouped_experts(gate_up, down, activation, **options)
    assert layer.nbytes == gate_up.nbytes + down.nbytes + sum(4 * bias.numel() for bias in biases or ())
    random = torch.Generator().manual_seed(3)
    for tokens in (0, 1, 21):
        x = torch.randn(tokens, HIDDEN, generator=random).bfloat16()
        ids = torch.rand(tokens, COUNT, generator=random).argsort(-1)[:, :3].contiguous()
        weights = torch.rand(tokens, 3, generator=random)
        for accumulate in (False, True):
            got, expected = torch.ones(2, tokens, HIDDEN).bfloat16()
            layer(x, ids, weights, got, accumulate=accumulate)
            expected_layer(x, ids, weights, expected, accumulate=accumulate)
            if tokens:
                close(got.float(), expected.float(), 2e-2, f"{activation}, {tokens} tokens")


def test_other_inputs_are_refused_by_name(package):
    package(LIBRARIES)
    kernels = LibraryKernels(FACTS)
    sides = weight(2 * INNER, HIDDEN, 1), weight(HIDDEN, INNER, 2)
    layer = kernels.grouped_experts(*sides, "silu", precision="none", gated=REFERENCE.gated)
    ids = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(UserError, match=r"bfloat16 and float16, not torch\.float32"):
        layer(torch.ones(1, HIDDEN), ids, torch.ones(1, 1), torch.empty(1, HIDDEN))


QUERY = {"op": "grouped_experts", "device": "cuda", "format": "mxfp4", "shape": (COUNT, 2 * INNER, HIDDEN)}


@pytest.mark.parametrize(
    "changed, words",
    [
        ({}, None),
        ({"op": "linear", "shape": (128, 64)}, "op: needs grouped_experts"),
        ({"attributes": {"dtype": "bfloat16", "profile": "sm_100"}}, None),
        ({"attributes": {"profile": "sm_80"}}, "got sm_80"),
        ({"attributes": {"dtype": "float32"}}, "--dtype bfloat16"),
        ({"attributes": {"dtype": "float32"}, "activation": "bf16"}, None),
        ({"format": "nvfp4"}, "format: needs mxfp4"),
        ({"activation": "int8"}, "activation"),
        ({"shape": (COUNT, 96, 64)}, "multiples of 64"),
        ({"op": "route"}, "op"),
        ({"device": "rocm"}, "device"),
    ],
)
def test_what_is_served(package, changed, words):
    package(LIBRARIES)
    found = [str(reason) for reason in lacking(KernelQuery(**(QUERY | changed)))]
    assert not found if words is None else any(words in sentence for sentence in found)


@pytest.mark.parametrize(
    "facts, is_served",
    [
        ({"profile": "sm_89"}, False),
        ({"profile": "sm_90"}, True),
        ({"profile": "sm_100"}, True),
        ({"profile": "sm_120"}, False),
        ({"dtype": "float32"}, False),
    ],
)
def test_which_runs_are_served(package, facts, is_served):
    package(LIBRARIES)
    kernels = LibraryKernels(FACTS | facts)
    assert (not kernels.supports(KernelQuery(**QUERY))) == is_served


@pytest.mark.parametrize(
    "modules, words",
    [
        (None, "not installed"),
        ((), "another package of that name"),
        (("matmul_ogs", "topk", "tensor", "numerics", "swiglu"), "version unknown, without routing"),
    ],
)
def test_other_packages_and_versions_are_told_apart(package, tmp_path, modules, words):
    if modules is not None:
        folder = tmp_path / "triton_kernels"
        folder.mkdir()
        for name in ("__init__", *modules):
            (folder / f"{name}.py").write_text("raise AssertionError('imported')\n")
    package(tmp_path)
    sentences = [str(reason) for reason in manifest.core_supports(KernelQuery(**QUERY))]
    assert len(sentences) == 1
    assert words in sentences[0]
    assert "subdirectory=python/triton_kernels" in sentences[0]


def test_an_installed_library_is_chosen_unless_bits_must_hold(package, tiny_llama, tmp_path):
    package(LIBRARIES)
    file = tmp_path / "absent.py"
    file.write_text(PLATFORM)
    arguments = {"model": str(tiny_llama), "plugins": str(file), "device": "absent", "dtype": "bfloat16"}
    done = resolve(arguments, context="llm", environ={})
    assert "triton_kernels" in done.engine.plugins.kernels
    assert not [text for text in done.warnings if "triton_kernels" in text], "no weight is packed"
    held = resolve({**arguments, "batch_invariant": True}, context="llm", environ={})
    assert held.engine.plugins.kernels == ("triton",)
    assert not [row for row in done.computed() if row.by == "triton_kernels"]


@pytest.mark.parametrize(
    "changes, by",
    [
        ({"quantization": "mxfp4"}, "triton_kernels"),
        ({"quantization": "mxfp4", "dtype": "float32"}, "triton"),
        ({"quantization": "int8"}, "triton"),
        ({}, "cublas"),
    ],
)
def test_the_library_is_named_for_what_it_computes(package, tmp_path, changes, by):
    package(LIBRARIES)
    file = tmp_path / "absent.py"
    file.write_text(PLATFORM)
    model = save_checkpoint(tmp_path / "model", "mixtral", hidden_size=128, intermediate_size=64)
    arguments = {"model": str(model), "plugins": str(file), "device": "absent", "dtype": "bfloat16", **changes}
    done = resolve(arguments, context="llm", environ={})
    (row,) = [row for row in done.computed() if any(name.endswith("experts") for name in row.operations)]
    assert row.by == by
    assert any("triton_kernels" in text for text in done.warnings) == (by == "triton_kernels")
    assert not [text for text in done.warnings if "scaled_mm" in text], "no inputs are rounded to 8 bits"
