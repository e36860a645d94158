"""Two hundred installed plugins that nobody chose cost names, and nothing else: no import, no helper process."""

import sys

import pytest

from core.args.schema import schema
from core.plugin import rehearsal
from core.plugin.discovery import discover
from core.plugin.registry import PluginRegistry
from core_config.selection import select_speculative
from core_runtime.specs.checkpoint import FileFacts

GROUPS = ("core.attention", "core.quantization", "core.platforms", "core.loaders", "core.speculative", "core.kernels")
UNTOUCHED = "raise SystemExit('this manifest was imported')"


@pytest.fixture
def many(install, monkeypatch):
    """200 distributions with one plugin each, none of which may be imported."""
    for number in range(200):
        group = GROUPS[number % len(GROUPS)]
        install(f"package-{number}", "1.0", {group: {f"plugin_{number}": UNTOUCHED}}, look=False)
    rows = discover([str(install.site)])
    assert len(rows) == 200
    monkeypatch.setattr(rehearsal, "start", lambda rows: pytest.fail("a platform was probed"))
    return rows


def test_names_choices_and_an_explicit_choice_import_nothing_else(many, make_plugin):
    registry = PluginRegistry([*many, make_plugin("loader", "mine"), make_plugin("speculative", "drafts")])
    before = set(sys.modules)
    assert len(registry.rows("attention")) == 34
    assert registry.get("loader", "mine").spec.name == "mine"
    assert select_speculative(registry, "drafts", None).selection.chosen == ("drafts",)
    assert select_speculative(registry, None, None).selection.chosen == ()
    assert not {name for name in set(sys.modules) - before if name.startswith("package_")}


def test_blocked_plugins_are_not_imported(many, make_plugin):
    from core_config.selection import select_loader

    sound = make_plugin("loader", "mine", "@hookimpl\ndef core_claim(facts): return 'mine'\n", distribution="d")
    before = set(sys.modules)
    registry = PluginRegistry([*many, sound], "mine")
    assert select_loader(registry, None, FileFacts("m", "/m", True, ())).selection.chosen == ("mine",)
    assert not {name for name in set(sys.modules) - before if name.startswith("package_")}


def test_arguments_are_declared_without_plugins(many):
    before = set(sys.modules)
    assert schema().fields["attention_backend"]
    assert not {name for name in set(sys.modules) - before if name.startswith("package_")}
