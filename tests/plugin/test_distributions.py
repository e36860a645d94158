"""A plugin of ours that is not installed, or is of another version, is a sentence with the package and the pip line."""

import tomllib
from pathlib import Path

import pytest

from core.api.errors import UserError
from core.api.specs import AttentionQuery, AttentionSpec
from core.plugin import distributions
from core.plugin.discovery import discover
from core.plugin.distributions import is_own, mismatch, table
from core.plugin.kinds import KINDS, normalize
from core.plugin.listing import listing
from core.plugin.registry import PluginRegistry
from core.plugin.requirements import unmet
from core.version import __version__
from core_config.selection import (
    select_attention,
    select_executor,
    select_loader,
    select_platform,
    select_policy,
    select_quantization,
    select_speculative,
)
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

ROOT = Path(__file__).parents[2]
FACTS = CheckpointFacts("x", "safetensors", "llama")
FILES = FileFacts("x", None, True, ("model.gguf",))
QUERY = AttentionQuery(
    spec=AttentionSpec(num_heads=4, num_kv_heads=2, head_size=16, head_size_v=16, scale=0.25),
    dtype="bfloat16",
    device="cpu",
    block_size=16,
)


def entry_points():
    """(kind, name) of all plugins that this repository's packages offer."""
    kinds = {kind.group: kind.name for kind in KINDS}
    found = set()
    for path in [ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]:
        if path.is_file():
            groups = tomllib.loads(path.read_text("utf-8"))["project"].get("entry-points", {})
            for group in kinds.keys() & groups.keys():
                found |= {(kinds[group], normalize(name)) for name in groups[group]}
    return found


def test_the_table_has_every_plugin_of_ours_and_no_other():
    listed = [(row.kind, name) for row in table() for name in row.names]
    assert len(listed) == len(set(listed))
    assert set(listed) == entry_points()


def test_every_kind_of_the_table_is_a_kind():
    assert {row.kind for row in table()} - {kind.name for kind in KINDS} == {""}


CHOICES = [
    ("core-engine-quantization", lambda none: select_quantization(none, "gptq", FACTS), "quantization 'gptq': "),
    ("core-engine-quantization", lambda none: select_quantization(none, "core-engine-quantization:AWQ", FACTS), ""),
    (
        "core-engine-quantization",
        lambda none: select_quantization(none, None, CheckpointFacts("x", "safetensors", "llama", quantization="hqq")),
        "the checkpoint declares 'hqq': ",
    ),
    ("core-engine-loaders", lambda none: select_loader(none, "gguf", FILES), "--load-format gguf: loader 'gguf': "),
    ("core-engine-attention", lambda none: select_attention(none, "flash-attn", QUERY, (), "x"), "--attention-backend"),
    ("core-engine-platforms", lambda none: select_platform(none, "cuda:1"), "--device cuda:1: platform 'cuda': "),
    ("core-engine-speculative", lambda none: select_speculative(none, "ngram", FACTS), "speculative 'ngram': "),
    ("core-engine-policies", lambda none: select_policy(none, "fcfs"), "--scheduling-policy fcfs: "),
    ("core-engine-executors", lambda none: select_executor(none, "torch", "cpu", FACTS), "--executor torch: "),
]


@pytest.fixture
def nothing_else(monkeypatch):
    """Only the core is installed."""
    monkeypatch.setattr(distributions, "_installed", lambda distribution: None)


@pytest.mark.usefixtures("nothing_else")
@pytest.mark.parametrize(("distribution", "choose", "words"), CHOICES)
def test_a_named_plugin_that_is_not_installed_names_its_package(distribution, choose, words):
    with pytest.raises(UserError) as caught:
        choose(PluginRegistry([]))
    expected = f"it comes with the package {distribution}, which is not installed; "
    assert f"{expected}run `pip install {distribution}=={__version__}`." in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.usefixtures("nothing_else")
@pytest.mark.parametrize(
    ("distribution", "choose"),
    [
        ("core-engine-loaders", lambda none: select_loader(none, None, FILES)),
        ("core-engine-attention", lambda none: select_attention(none, None, QUERY, (), "x")),
        ("core-engine-platforms", lambda none: select_platform(none, None)),
        ("core-engine-executors", lambda none: select_executor(none, None, "cpu", FACTS)),
    ],
)
def test_a_kind_without_any_plugin_names_the_package(distribution, choose):
    with pytest.raises(UserError, match=f"plugin is installed; run `pip install {distribution}=={__version__}`"):
        choose(PluginRegistry([]))


def test_a_name_of_nobody_names_no_package():
    with pytest.raises(UserError, match="no such plugin") as caught:
        PluginRegistry([]).get("quantization", "gtpq")
    assert "pip install" not in str(caught.value)


def test_installed_packages_are_not_proposed(fake_distribution, monkeypatch):
    site = fake_distribution("core-engine-quantization", __version__, {"core.quantization": {"other": "nowhere"}})
    monkeypatch.syspath_prepend(str(site))
    with pytest.raises(UserError, match="no such plugin; known: other"):
        PluginRegistry(discover([str(site)])).get("quantization", "gptq")


def test_another_version_of_ours_is_blocked_and_named_with_both(fake_distribution, monkeypatch):
    site = fake_distribution("core-engine-quantization", "9.8.7", {"core.quantization": {"gptq": "nowhere"}})
    monkeypatch.syspath_prepend(str(site))
    registry = PluginRegistry(discover([str(site)]))
    expected = f"core-engine-quantization is 9.8.7, but core-engine is {__version__}; "
    expected += f"run `pip install core-engine-quantization=={__version__}`"
    with pytest.raises(UserError, match="quantization 'gptq': ") as caught:
        registry.get("quantization", "gptq")
    assert f"{expected}." in str(caught.value)
    (listed,) = listing(registry)
    assert (listed.status, listed.reason) == ("blocked", expected)
    assert unmet("core-engine-quantization") == expected


def test_the_same_version_of_ours_serves_unnamed_and_a_strangers_need_not_be_ours():
    assert (
        is_own("core-engine-quantization")
        and is_own("core_engine")
        and not is_own("core-quantizations")
        and not is_own("")
    )
    assert mismatch("core-engine-quantization", __version__) == ""
    assert mismatch("core-nibble4", "9.8.7") == ""
