"""Adapters of attention libraries keep the kit's promises, over stand-ins with the published signatures."""

import functools
import importlib
import importlib.metadata
import importlib.util
import sys

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from core.api.specs import AttentionQuery, AttentionSpec, LatentSpec
from core.plugin.hookspecs import LoadContext
from core.plugin.table import load_plugin
from core_attention import fused_heads
from core_attention.flash_attn import manifest as flash_attn
from core_attention.flash_mla import manifest as flash_mla
from core_attention.flashinfer import manifest as flashinfer
from core_attention.flex import manifest as flex
from core_config.selection.reasons import attention_reasons
from core_kit.case import Case, Subject
from core_kit.checks import attention as kit
from core_kit.devices.fake_device import FakeCalls
from core_kit.fixtures import attention_cases
from core_kit.fixtures.attention_cases import LATENTS, compare, variant
from core_kit.suite import title
from core_runtime.contracts import BatchView
from core_runtime.layers.kernels import KernelSet

LIBRARIES = {"flash_attn": ["flash_attn_interface"], "flashinfer": ["flashinfer"]}
PARTS = {"flash_attn.cute": ("flash_attn_4", "flash-attn-4")}
"""Stand-ins of modules in other packages, and the distributions by which they are found."""
CHECKS = [check for check in kit.CHECKS if check.__name__ in {one.__name__ for one in kit.KEYED}]

QUICK = [check for check in CHECKS if check.__name__ != "turning_equals_kernels"]


class HostSubject(Subject):
    """A backend of another device, tried on the host's tensors."""

    @functools.cached_property
    def loaded(self):
        return load_plugin(self.manifest, LoadContext(device="cuda", kernels=KernelSet([])))


@pytest.fixture
def libraries(monkeypatch):
    """Puts stand-ins in the place of libraries."""

    def put(*names):
        for name in names:
            stand_in = importlib.import_module(f"tests.attention.libraries.{PARTS.get(name, (name,))[0]}")
            monkeypatch.setitem(sys.modules, name, stand_in)
        there = {PARTS[name][1] for name in names if name in PARTS}
        version = importlib.metadata.version
        monkeypatch.setattr(importlib.metadata, "version", lambda one: "4.0.0b36" if one in there else version(one))
        found = importlib.util.find_spec
        specs = {name: sys.modules[name].__spec__ for name in names}
        known = {"flash_attn", "flash_attn_interface", "flashinfer", "flash_mla"}
        monkeypatch.setattr(importlib.util, "find_spec", lambda n, p=None: specs.get(n) if n in known else found(n, p))

    return put


@pytest.fixture
def plain_writes(monkeypatch):
    """Has torch write keys and values where the kernel does, which Triton's interpreter takes seconds for."""

    def write(layer, k, v, view):
        there = view.slot_mapping >= 0
        layout, slots = layer.layout, view.slot_mapping[there]
        blocks, offsets = slots // layout.block_size * layout.block_stride, slots % layout.block_size
        heads = torch.arange(layout.heads).unsqueeze(1)
        for x, base, head, token in (
            (k, 0, layout.k_head, layout.k_token),
            (v, layout.v_base, layout.v_head, layout.v_token),
        ):
            rows = blocks + base + offsets * token
            places = rows.view(-1, 1, 1) + heads * head + torch.arange(x.shape[-1])
            layer.cache[places] = x[there].to(layer.cache.dtype)

    monkeypatch.setattr(fused_heads, "write_rows", write)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("check", QUICK, ids=title)
def test_promises_of_the_kit(libraries, plain_writes, name, check):
    libraries(*LIBRARIES[name])
    Case(HostSubject("attention", name), title(check), check)()


@pytest.mark.gpu_interpreter
@pytest.mark.parametrize("name", [*LIBRARIES, "flash_mla"])
@pytest.mark.parametrize("check", CHECKS, ids=title)
def test_promises_of_the_kit_where_the_kernel_writes(libraries, name, check):
    libraries(*LIBRARIES.get(name, [name]))
    Case(HostSubject("attention", name), title(check), check)()


def test_the_kernel_writes_where_libraries_read(libraries):
    libraries("flash_attn_interface")
    subject = HostSubject("attention", "flash_attn")
    compare(subject, "grouped heads", spec_of("grouped heads"), 16, "bfloat16", chunk=0)


@pytest.mark.parametrize("what", ["grouped heads", "a window", "sinks", "a soft cap"])
def test_flash_attention_4_computes_the_same(libraries, plain_writes, what):
    libraries("flash_attn.cute")
    subject = HostSubject("attention", "flash_attn")
    assert subject.manifest.spec.capabilities["sinks"]
    compare(subject, what, spec_of(what), 16, "bfloat16", chunk=7)


FLEX = (
    pytest.param("grouped heads", marks=pytest.mark.slow),
    pytest.param("a window in chunks", marks=pytest.mark.slow),
    "slopes, sinks and a soft cap",
)


@pytest.mark.parametrize("what", FLEX)
def test_flex_attention_equals_the_formula(what):
    """As torch computes it call by call; on a GPU it compiles the same functions."""
    subject = HostSubject("attention", "flex")
    subject.loaded._attend = flex_attention
    compare(subject, what, spec_of(what), 16, "float32", chunk=0)


def test_flash_attention_2_computes_the_same(libraries, plain_writes):
    libraries("flash_attn")
    subject = HostSubject("attention", "flash_attn")
    assert subject.manifest.spec.capabilities["alibi"]
    tried = 0
    for what in ("grouped heads", "a window", "slopes", "a soft cap"):
        compare(subject, what, spec_of(what), 256, "bfloat16", chunk=7)
        tried += 1
    assert tried == 4


def late_wrapper(calls):
    """FlashInfer's wrapper on a device that works late: a plan reaches it by a copy from one pinned buffer of the host."""
    library = importlib.import_module("tests.attention.libraries.flashinfer")

    class LateWrapper(library.BatchDecodeWithPagedKVCacheWrapper):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.plans = []
            self.host = calls.pinned(8)
            self.on_device = torch.zeros(8, dtype=torch.uint8)

        def plan(self, *args, **kwargs):
            super().plan(*args, **kwargs)
            self.host.view(torch.int64)[0] = len(self.plans)
            self.plans.append(self.inner.step)
            calls.copy(self.on_device, self.host)

        def run(self, q, cache, **kwargs):
            calls.later(lambda: self.compute(q, cache))
            return torch.zeros_like(q)

        def compute(self, q, cache):
            self.inner.step = self.plans[self.on_device.view(torch.int64)[0]]
            calls.outs.append(super().run(q, cache))

    return LateWrapper


def one_sequence(length):
    """A step that computes the last token of a sequence whose blocks are 1, 2, ..."""
    return BatchView(
        num_tokens=1,
        num_seqs=1,
        block_size=16,
        max_query_len=1,
        max_seq_len=length,
        query_lens=[1],
        seq_lens_list=[length],
        cu_seqlens_q=torch.tensor([0, 1], dtype=torch.int32),
        seq_lens=torch.tensor([length], dtype=torch.int32),
        block_table=torch.arange(1, 9, dtype=torch.int32).unsqueeze(0),
        slot_mapping=torch.tensor([length + 15]),
        positions=torch.tensor([length - 1]),
    )


def test_flashinfer_keeps_the_plan_of_a_step_that_has_not_run(libraries, monkeypatch):
    """The host plans steps ahead of the device; each runs with its own plan, and two of them wait for nothing."""
    libraries("flashinfer")
    calls = FakeCalls()
    calls.outs = []
    spec = spec_of("grouped heads")
    raw = torch.randn(9, 16 * spec.num_kv_heads * spec.head_size * 2, generator=torch.Generator().manual_seed(1))
    raw = raw.to(torch.bfloat16).view(torch.uint8)
    q = torch.ones(1, spec.num_heads, spec.head_size, dtype=torch.bfloat16)
    lengths = (5, 100, 37, 64)

    plain = HostSubject("attention", "flashinfer").loaded
    expected = []
    for length in lengths:
        out = torch.empty_like(q)
        plain.forward(plain.bind(spec, 16, "bfloat16", raw), q, plain.build(one_sequence(length)), out)
        expected.append(out)

    class Event:
        def record(self):
            self.synchronize = calls.mark().synchronize

    monkeypatch.setattr(torch.cpu, "Event", Event)
    monkeypatch.setattr(sys.modules["flashinfer"], "BatchDecodeWithPagedKVCacheWrapper", late_wrapper(calls))
    backend = HostSubject("attention", "flashinfer").loaded
    layer = backend.bind(spec, 16, "bfloat16", raw)
    waits = []
    for length in lengths:
        backend.forward(layer, q, backend.build(one_sequence(length)), torch.empty_like(q))
        waits.append(calls.waits)
    calls.synchronize()
    assert waits == [0, 0, 1, 2]
    assert all(torch.equal(out, right) for out, right in zip(calls.outs, expected, strict=True))
    assert not torch.equal(expected[0], expected[1])


def spec_of(what: str) -> AttentionSpec:
    return variant(what, 64)


def reasons(manifest, spec=None, **query):
    spec = spec or spec_of("grouped heads")
    asked = AttentionQuery(spec, **({"device": "cuda", "dtype": "bfloat16", "block_size": 16} | query))
    return [str(reason) for reason in attention_reasons(manifest.core_spec(), asked) or manifest.core_supports(asked)]


def test_what_is_not_installed_says_so(libraries):
    libraries()
    (reason,) = reasons(flash_attn)
    assert reason.startswith("missing_library: needs flash-attn-3 or flash-attn")
    assert "pip install" in reason
    (reason,) = reasons(flashinfer)
    assert reason.startswith("missing_library: needs flashinfer-python")


@pytest.mark.parametrize(
    "names, query, there",
    [
        (["flash_attn_interface"], {"profile": "sm_90"}, []),
        (["flash_attn_interface"], {"profile": "sm_80"}, ["sm_90 to sm_90 for flash-attn-3, got sm_80"]),
        (["flash_attn"], {"profile": "sm_80", "block_size": 256}, []),
        (["flash_attn"], {"profile": "sm_80"}, ["a multiple of 256 for flash-attn, got 16"]),
        (["flash_attn_interface", "flash_attn"], {"profile": "sm_89", "block_size": 512}, []),
        (["flash_attn.cute"], {"profile": "sm_100"}, []),
        (["flash_attn.cute"], {"profile": "sm_90", "block_size": 1}, []),
        (["flash_attn.cute"], {"profile": "sm_120"}, ["sm_90 to sm_119 for flash-attn-4, got sm_120"]),
        (["flash_attn_interface"], {"dtype": "float32"}, ["kv_cache_dtype"]),
        (["flash_attn_interface"], {"device": "cpu"}, ["device: needs cuda, got cpu"]),
    ],
)
def test_a_version_is_chosen_by_chip_and_block_size(libraries, names, query, there):
    libraries(*names)
    found = reasons(flash_attn, **query)
    assert len(found) == len(there)
    assert all(word in sentence for word, sentence in zip(there, found, strict=True))


def test_layers_that_libraries_do_not_serve(libraries):
    libraries("flash_attn_interface", "flashinfer")
    assert "sinks" in reasons(flash_attn, spec_of("sinks"))[0]
    assert "alibi" in reasons(flash_attn, spec_of("slopes"))[0]
    assert "head_size" in reasons(flash_attn, variant("grouped heads", 512))[0]
    assert "head_size" in reasons(flashinfer, variant("grouped heads", 80))[0]
    assert "sm_75 or newer, got sm_70" in reasons(flashinfer, profile="sm_70")[0]
    wide = AttentionSpec(4, 2, 64, 32, 0.125)
    assert "values as wide as keys" in reasons(flex, wide)[0]


def one_step(name, **arguments):
    """A step of one token through a backend with arguments of its own."""
    manifest = importlib.import_module(f"core_attention.{name}.manifest")
    backend = manifest.core_load(LoadContext(device="cuda", arguments=manifest.Arguments(**arguments)))
    spec = spec_of("grouped heads")
    raw = torch.zeros(9, 16 * spec.num_kv_heads * spec.head_size * 4, dtype=torch.uint8)
    q = torch.ones(1, spec.num_heads, spec.head_size, dtype=torch.bfloat16)
    backend.forward(backend.bind(spec, 16, "bfloat16", raw), q, backend.build(one_sequence(37)), torch.empty_like(q))


@pytest.mark.parametrize("library", ["flash_attn_interface", "flash_attn.cute"])
@pytest.mark.parametrize("invariant", [False, True])
def test_flash_attention_divides_no_keys_where_bits_must_hold(libraries, monkeypatch, library, invariant):
    libraries(library)
    asked = []
    for name in ("flash_attn_with_kvcache", "flash_attn_varlen_func"):
        call = getattr(sys.modules[library], name, None)
        if call is not None:
            monkeypatch.setattr(
                sys.modules[library],
                name,
                lambda *a, num_splits, call=call, **named: asked.append(num_splits) or call(*a, **named),
            )
    one_step("flash_attn", invariant=invariant)
    assert asked == [1 if invariant else 0]


@pytest.mark.parametrize("invariant", [False, True])
def test_flashinfer_divides_keys_at_fixed_places_where_bits_must_hold(libraries, monkeypatch, invariant):
    """A token that is decoded then takes the way that it takes in a prompt."""
    libraries("flashinfer")
    library = sys.modules["flashinfer"]
    planned = []
    for name in ("BatchPrefillWithPagedKVCacheWrapper", "BatchDecodeWithPagedKVCacheWrapper"):
        wrapper = getattr(library, name)
        plan = wrapper.plan

        def recorded(self, *arguments, name=name, plan=plan, **named):
            planned.append((name, named.get("fixed_split_size")))
            plan(self, *arguments, **named)

        monkeypatch.setattr(wrapper, "plan", recorded)
    one_step("flashinfer", invariant=invariant)
    name, pages = planned[0]
    assert name == f"Batch{'Prefill' if invariant else 'Decode'}WithPagedKVCacheWrapper"
    assert pages == (128 if invariant else None)


def test_flashinfer_serves_the_latents_of_deepseek(libraries):
    libraries("flashinfer")
    assert not reasons(flashinfer, LATENTS["latents of DeepSeek-V3"])
    assert "latents of 512 and keys of 64" in reasons(flashinfer, LATENTS["latents"])[0]


def test_flash_mla_decodes(libraries, monkeypatch):
    libraries("flash_mla")
    library = sys.modules["flash_mla"]
    asked = []
    call = library.flash_mla_with_kvcache
    monkeypatch.setattr(
        library, "flash_mla_with_kvcache", lambda *a, **named: asked.append(len(a[0])) or call(*a, **named)
    )
    monkeypatch.setattr(attention_cases, "LENGTHS", (5, 2))
    spec = LatentSpec(2, rank=512, rope_size=64, head_size_nope=128, head_size_v=128, scale=0.07)
    compare(HostSubject("attention", "flash_mla"), "two heads", spec, 64, "bfloat16", chunk=1)
    assert asked == [2, 2, 1, 1, 1]


def test_flash_mla_is_for_hopper_and_blocks_of_64(libraries):
    libraries("flash_mla")
    spec = LATENTS["latents of DeepSeek-V3"]
    assert not reasons(flash_mla, spec, block_size=64, profile="sm_90")
    assert "block_size: needs 64, got 16" in reasons(flash_mla, spec)[0]
    assert "sm_90, got sm_100" in reasons(flash_mla, spec, block_size=64, profile="sm_100")[0]
    assert "latents of 512" in reasons(flash_mla, LATENTS["latents"], block_size=64)[0]
    libraries()
    assert "deepseek-ai/FlashMLA" in reasons(flash_mla, spec, block_size=64)[0]
