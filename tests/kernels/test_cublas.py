"""Products of the `cublas` provider, which torch computes on a processor too: the kit's promises, and who computes when."""

import os
from types import SimpleNamespace

import pytest
import torch

from core.api.errors import UserError
from core.api.specs import KernelQuery
from core.plugin.hookspecs import LoadContext
from core_kernels.cublas import invariant, invariant_manifest, manifest
from core_kernels.cublas.experts import has_grouped_products
from core_kernels.cublas.invariant import InvariantKernels
from core_kernels.cublas.kernels import CublasKernels
from core_kernels.cublas.products import CublasLinear
from core_kernels.triton.kernels import TritonKernels
from core_kernels.triton.products.experts import TritonExperts
from core_kernels.triton.products.linear import TritonLinear
from core_kit.case import Skipped
from core_kit.checks import kernels as kit
from core_kit.oracles.numbers import close
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.weights.experts import Experts
from core_runtime.weights.formats import Dense

SHAPES = ((7, 77),)
PROVIDERS = {
    "cublas": (lambda: CublasKernels(TritonKernels(), most=0), manifest),
    "cublas_invariant": (lambda: InvariantKernels(TritonKernels(), "cublas_invariant", most=0), invariant_manifest),
}
CHECKS = [
    kit.says_what_it_lacks,
    kit.serves_what_it_declares,
    kit.linear_equals_reference,
    kit.embedding_equals_reference,
    kit.memory_is_told,
]


CASES = [(name, check) for name in PROVIDERS for check in (CHECKS if name == "cublas" else CHECKS[:2])]


@pytest.mark.parametrize("name, check", CASES, ids=lambda one: getattr(one, "__name__", one))
def test_promises_of_the_kit(name, check, monkeypatch):
    monkeypatch.setattr(kit, "SHAPES", SHAPES)
    make, its_manifest = PROVIDERS[name]
    subject = SimpleNamespace(device="cpu", loaded=make(), manifest=SimpleNamespace(spec=its_manifest.core_spec()))
    try:
        check(subject)
    except Skipped as skipped:
        pytest.skip(str(skipped))


def numbers(*shape, dtype=torch.bfloat16):
    random = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=random).to(dtype)


@pytest.fixture
def launched(monkeypatch):
    """The numbers of rows that Triton multiplies; it computes nothing."""
    found = []

    def call(self, x, out, *, accumulate=False):
        found.append(len(x))
        out.zero_()

    monkeypatch.setattr(TritonLinear, "__call__", call)
    return found


def test_few_rows_are_tritons(launched):
    kernel = CublasKernels(TritonKernels()).linear(Dense(numbers(24, 16)), activation="none")
    for rows in (1, 64, 65, 300):
        kernel(numbers(rows, 16), torch.empty(rows, 24, dtype=torch.bfloat16))
    assert launched == [1, 64]


def test_every_number_of_rows_is_cublas_where_bits_must_hold(launched):
    kernel = InvariantKernels(TritonKernels(), most=0).linear(Dense(numbers(24, 16)), activation="none")
    for rows in (1, 64, 65):
        kernel(numbers(rows, 16), torch.empty(rows, 24, dtype=torch.bfloat16))
    assert launched == []


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("out_type", [torch.bfloat16, torch.float32])
def test_outputs_are_the_references(bias, accumulate, out_type, monkeypatch):
    """Into rows that lie apart; logits are wider than what they are computed from."""
    multiply = torch.mm

    def mm(x, y, out_dtype=None, out=None):
        """As on a GPU; on processors torch has no products with outputs of another type."""
        return multiply(x.to(out_dtype or x.dtype), y.to(out_dtype or y.dtype), out=out)

    monkeypatch.setattr(torch, "mm", mm)
    weight, added = Dense(numbers(24, 16)), numbers(24) if bias else None
    x = numbers(70, 20)[:, :16]
    outs = []
    for kernels in (CublasKernels(TritonKernels()), ReferenceKernels()):
        out = numbers(70, 30).to(out_type)[:, :24]
        kernels.linear(weight, activation="bf16", bias=added)(x, out, accumulate=accumulate)
        outs.append(out.float())
    close(outs[0], outs[1], 2e-2, "a product of 70 rows")


def test_experts_are_grouped_products(monkeypatch):
    """Experts without a token among them; up to 64 pairs are Triton's."""
    tokens, count, inner, hidden = 33, 6, 16, 24
    gate_up = Experts(Dense(numbers(count * 2 * inner, hidden)), count)
    down = Experts(Dense(numbers(count * hidden, inner)), count)
    x = numbers(tokens, hidden)
    ids = torch.stack([torch.arange(tokens) % 5, torch.full((tokens,), 5)], 1)
    ids[:, 1] -= 4 * (torch.arange(tokens) % 2)
    weights = numbers(tokens, 2, dtype=torch.float32).abs()
    few = []
    monkeypatch.setattr(TritonExperts, "__call__", lambda self, x, *args, **named: few.append(len(x)))
    outs = []
    for kernels in (CublasKernels(TritonKernels()), ReferenceKernels()):
        layer = kernels.grouped_experts(gate_up, down, "silu", precision="none", gated=ReferenceKernels().gated)
        out = torch.full((tokens, hidden), torch.nan, dtype=torch.bfloat16)
        layer(x, ids, weights, out)
        outs.append(out.float())
        if isinstance(kernels, CublasKernels):
            layer(x[:32], ids[:32], weights[:32], torch.empty(32, hidden, dtype=torch.bfloat16))
    close(outs[0], outs[1], 5e-2, "a layer of experts")
    assert few == [32]


@pytest.mark.parametrize("capability, served", [((8, 0), False), ((9, 0), True), ((10, 0), True)])
def test_experts_are_grouped_from_hopper_on(monkeypatch, capability, served):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert has_grouped_products(torch.device("cuda:0")) is served


def test_the_invariant_provider_leaves_experts_and_heads_to_triton(launched):
    layer = InvariantKernels(TritonKernels(), most=0).grouped_experts(
        Experts(Dense(numbers(64, 16)), 2),
        Experts(Dense(numbers(32, 16)), 2),
        "silu",
        precision="none",
        gated=ReferenceKernels().gated,
    )
    assert isinstance(layer, TritonExperts)


def test_heads_of_many_rows_are_one_batched_product():
    weight, x = numbers(3, 8, 16), numbers(70, 3, 16)
    outs = []
    for kernels in (CublasKernels(TritonKernels()), ReferenceKernels()):
        out = torch.full((70, 3, 12), torch.nan, dtype=torch.bfloat16)[:, :, :8]
        kernels.heads(weight, "none")(x, out)
        outs.append(out.float())
    close(outs[0], outs[1], 2e-2, "three heads")


@pytest.mark.parametrize("form, activation", [("int4_groups", "none"), ("bfloat16", "int8"), ("fp8_e4m3", "none")])
def test_what_no_library_serves_is_left_to_others(form, activation):
    query = KernelQuery("linear", "cuda", form, activation, (64, 64))
    assert manifest.core_supports(query)
    assert not manifest.core_supports(KernelQuery("linear", "cuda", "bfloat16", "none", (64, 64)))
    assert manifest.core_supports(KernelQuery("rms_norm", "cuda"))


def test_split_k_is_forbidden_before_cublas_opens(monkeypatch):
    for name, _ in invariant.NO_WORKSPACE:
        monkeypatch.setenv(name, "before")
    libraries = []
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", libraries.append)
    matmul = SimpleNamespace()
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    invariant.forbid_split_k("cuda:0")
    assert os.environ["CUBLASLT_WORKSPACE_SIZE"] == "1" and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert libraries == ["cublaslt"]
    assert matmul.allow_bf16_reduced_precision_reduction == (False, False)


def test_older_devices_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(UserError, match=r"9\.0 .* or newer, got 8\.0 on cuda:0; leave it out"):
        invariant.forbid_split_k("cuda:0")


def test_a_fused_gate_is_used_for_few_rows(monkeypatch):
    fused = property(lambda self: lambda x, activation, out: out.fill_(7))
    monkeypatch.setattr(TritonLinear, "gated", fused, raising=False)
    few = TritonKernels().linear(Dense(numbers(24, 16)), activation="none")
    kernel = CublasLinear(few, 64, ReferenceKernels().gated)
    for rows in (64, 65):
        x, out = numbers(rows, 16), torch.empty(rows, 12, dtype=torch.bfloat16)
        kernel.gated(x, "silu", out)
        both = torch.empty(rows, 24, dtype=torch.bfloat16)
        ReferenceKernels().linear(Dense(numbers(24, 16)), activation="none")(x, both)
        expected = torch.empty_like(out)
        ReferenceKernels().gated(both, "silu", expected)
        assert bool((out == 7).all()) is (rows == 64)
        if rows > 64:
            close(out.float(), expected.float(), 3e-2, "a gate after a product")
    assert CublasLinear(few, 0, ReferenceKernels().gated).gated is None


def test_tiles_of_triton_are_those_of_its_arguments(tmp_path):
    """Few rows are multiplied as `--kernels-config.triton.tiles` says."""
    config = SimpleNamespace(
        plugins=SimpleNamespace(arguments={"kernels.triton": {"tiles": str(tmp_path / "none.txt")}})
    )
    with pytest.raises(UserError, match=r"none\.txt"):
        manifest.core_load(LoadContext(device="cuda", config=config))
    assert manifest.core_load(LoadContext(device="cuda")).numerics == manifest.core_numerics()
