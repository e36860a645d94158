"""Nothing that a plugin author can meet is undocumented, and no example differs from the code it was taken from."""

import dataclasses
import inspect
import re
from pathlib import Path

import msgspec
import pytest

from core.api import specs
from core.engine import executor
from core.plugin import hookspecs
from core.plugin.capabilities import BOOLEANS, LISTS
from core.plugin.kinds import KINDS
from core.plugin.manifest import ACCEPTED_CONTRACTS
from core.plugin.signatures import contract_methods, protocol
from core_kit.skeleton import TEMPLATES, kinds
from core_runtime import contracts
from core_runtime.specs import checkpoint

DOCS = Path(__file__).parents[2] / "docs" / "plugins"
README = (DOCS / "README.md").read_text(encoding="utf-8")
HOOKS = [name for name in vars(hookspecs.ManifestHooks) if name.startswith("core_")]
CONTRACTS = {kind.name: protocol(kind.contract) for kind in KINDS}
FURTHER = {
    "executor": [executor.Executor],
    "platform": [
        contracts.Runtime,
        contracts.Captures,
        contracts.CapturesSizes,
        contracts.Uploads,
        contracts.Trims,
        contracts.CapturedCalls,
    ],
    "kernels": [
        *(contracts.LinearKernel, contracts.RaceKernel, contracts.LogprobsKernel, contracts.RouteKernel),
        *(contracts.ExpertsKernel, contracts.HeadsKernel, contracts.ActivatedLinear, contracts.HasSoftCap),
        *(contracts.HasTakeRows, contracts.HasAddNorm, contracts.HasExperts, contracts.HasHeads),
    ],
    "attention": [
        *(contracts.LatentBackend, contracts.StateBackend, contracts.HasExampleState, contracts.TurnsHeads),
        *(contracts.SumsParts, contracts.ChoosesKeys),
    ],
    "speculative": [contracts.DraftHeads, contracts.HearsResults],
}
"""Contracts of objects that a kind's own object hands out, and those that it may have beside its own."""
STRUCTS = {
    "README": [hookspecs.PluginSpec, hookspecs.LoadContext],
    "platform": [hookspecs.Device, hookspecs.Probe, hookspecs.Proposal, hookspecs.PlatformView],
    "quantization": [specs.LayerSpec, specs.DensePlan, specs.PartPlan, specs.Unsupported],
    "attention": [
        *(specs.AttentionSpec, specs.LatentSpec, specs.StateSpec, specs.AttentionQuery, specs.StateQuery),
        *(specs.KVLayout, contracts.BatchView, contracts.HeadTurn, specs.IndexSpec),
    ],
    "kernels": [specs.KernelQuery],
    "speculative": [contracts.ProposerInput, contracts.RequestFacts, contracts.DraftView, hookspecs.DraftContext],
    "loader": [checkpoint.CheckpointManifest, checkpoint.TensorInfo, checkpoint.FileFacts, checkpoint.TokenizerSource],
}


def page(name):
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def arguments(function):
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    if names == ["call"] and "RaceCall" in inspect.getdoc(function):
        return contracts.RaceCall.__struct_fields__[:6]  # of a kernel without masks
    return names


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_with_its_arguments(hook):
    call = f"`{hook}({', '.join(arguments(getattr(hookspecs.ManifestHooks, hook)))})`"
    assert call in README, f"docs/plugins/README.md does not explain {call}"


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_every_kind_has_a_row_a_page_a_contract_and_a_template(kind):
    row = next(known for known in KINDS if known.name == kind)
    assert f"[`{kind}`]({kind}.md)" in README and f"`{row.group}`" in README
    assert CONTRACTS[kind].__name__ in page(kind)
    assert kind in kinds()


CONTRACT_PARTS = [(kind, contract) for kind, own in CONTRACTS.items() for contract in [own, *FURTHER.get(kind, [])]]


@pytest.mark.parametrize("kind, contract", CONTRACT_PARTS, ids=[f"{k}.{c.__name__}" for k, c in CONTRACT_PARTS])
def test_every_part_of_a_contract_is_documented(kind, contract):
    text = page(kind)
    for name in contract.__annotations__:
        assert f"`{name}`" in text, f"docs/plugins/{kind}.md does not explain {contract.__name__}.{name}"
    for name, method in {**contract_methods(contract), "__call__": vars(contract).get("__call__")}.items():
        if method is None:
            continue
        listed = ", ".join(arguments(method))
        call = f"`({listed})`" if name == "__call__" else f"`{name}({listed})`"
        assert call in text, f"docs/plugins/{kind}.md does not explain {contract.__name__}: {call}"


@pytest.mark.parametrize("name", [name for name in contracts.__all__ if name[0].isupper()])
def test_every_contract_and_optional_part_is_named_on_a_page(name):
    assert any(f"`{name}`" in page(kind) for kind in kinds()), f"docs/plugins never names {name}"


STRUCT_PARTS = [(name, struct) for name, structs in STRUCTS.items() for struct in structs]


@pytest.mark.parametrize("name, struct", STRUCT_PARTS, ids=[struct.__name__ for _, struct in STRUCT_PARTS])
def test_every_field_is_documented(name, struct):
    fields = dataclasses.fields(struct) if dataclasses.is_dataclass(struct) else msgspec.structs.fields(struct)
    for field in fields:
        assert f"`{field.name}`" in page(name), (
            f"docs/plugins/{name}.md does not explain {struct.__name__}.{field.name}"
        )


@pytest.mark.parametrize("name", sorted(LISTS | BOOLEANS))
def test_every_capability_is_documented(name):
    assert f"`{name}`" in README


def test_examples_are_the_templates():
    marked = re.compile(r"<!-- plugins/kit/core_kit/templates/(\S+) -->\n```python\n(.*?)```", re.S)
    found = [(path.name, *match) for path in DOCS.glob("*.md") for match in marked.findall(path.read_text("utf-8"))]
    assert {name.removesuffix(".md") for name, *_ in found} == set(kinds())
    for name, file, text in found:
        assert text == (TEMPLATES / file).read_text("utf-8"), f"docs/plugins/{name} shows an older {file}"


def test_links_lead_somewhere():
    for path in DOCS.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_packages_to_read_have_as_many_lines_as_is_said():
    root = DOCS.parents[1]
    rows = re.findall(r"^\| \[`(\w+)`\]\((\S+)\) \|.*\| (\d+) \|$", README, re.M)
    assert len(rows) >= 6
    for name, link, lines in rows:
        assert (DOCS / link).resolve() == root / "tests" / "external" / name
        files = [path for path in (DOCS / link).rglob("*.py") if "build" not in path.parts]
        there = sum(len(path.read_text("utf-8").splitlines()) for path in files)
        assert int(lines) == there, f"docs/plugins/README.md: {name} has {there} lines of Python"


def test_stability_names_the_numbers_that_are_accepted():
    current = max(ACCEPTED_CONTRACTS)
    assert f"This engine's is {current};" in page("stability")
    assert tuple(ACCEPTED_CONTRACTS) == (current, current - 1)
