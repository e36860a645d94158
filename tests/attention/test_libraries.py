"""Adapters of attention libraries keep the kit's promises, over stand-ins with the published signatures."""

import functools
import importlib
import importlib.util
import sys

import pytest
from torch.nn.attention.flex_attention import flex_attention

from core.api.specs import AttentionQuery, AttentionSpec
from core.plugin.hookspecs import LoadContext
from core.plugin.table import load_plugin
from core_attention.flash_attn import manifest as flash_attn
from core_attention.flashinfer import manifest as flashinfer
from core_attention.flex import manifest as flex
from core_config.selection.reasons import attention_reasons
from core_kit.case import Case, Subject
from core_kit.checks import attention as kit
from core_kit.fixtures.attention_cases import compare, variant
from core_kit.suite import title
from core_runtime.layers.kernels import KernelSet

LIBRARIES = {"flash_attn": ["flash_attn_interface"], "flashinfer": ["flashinfer"]}
CHECKS = [check for check in kit.CHECKS if check.__name__ in {one.__name__ for one in kit.KEYED}]


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
            stand_in = importlib.import_module(f"tests.attention.libraries.{name}")
            monkeypatch.setitem(sys.modules, name, stand_in)
        found = importlib.util.find_spec
        specs = {name: sys.modules[name].__spec__ for name in names}
        known = {"flash_attn", "flash_attn_interface", "flashinfer"}
        monkeypatch.setattr(importlib.util, "find_spec", lambda n, p=None: specs.get(n) if n in known else found(n, p))

    return put


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("check", CHECKS, ids=title)
def test_promises_of_the_kit(libraries, name, check):
    libraries(*LIBRARIES[name])
    Case(HostSubject("attention", name), title(check), check)()


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


def test_flash_attention_2_computes_the_same(libraries):
    libraries("flash_attn")
    subject = HostSubject("attention", "flash_attn")
    assert subject.manifest.spec.capabilities["alibi"]
    tried = 0
    for what in ("grouped heads", "a window", "slopes", "a soft cap"):
        compare(subject, what, spec_of(what), 256, "bfloat16", chunk=7)
        tried += 1
    assert tried == 4


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
