"""What `--plugins` adds, restricts and blocks; doubles and aliases; statuses."""

import pytest

from core.api.errors import ConfigError, UserError
from core.plugin.listing import listing
from core.plugin.manifest import ManifestError
from core.plugin.registry import PluginRegistry


def statuses(registry):
    return {item.row.name: item.status for item in listing(registry)}


def test_names_restrict_their_own_kind_and_no_blocks(make_plugin):
    rows = [
        make_plugin("loader", "one", distribution="d"),
        make_plugin("loader", "two", distribution="d"),
        make_plugin("attention", "three", distribution="d"),
    ]
    assert statuses(PluginRegistry(rows)) == dict.fromkeys(("one", "two", "three"), "available")
    assert statuses(PluginRegistry(rows, "one")) == {"one": "available", "two": "blocked", "three": "available"}
    registry = PluginRegistry(rows, "no:One,three")
    assert statuses(registry) == {"one": "blocked", "two": "available", "three": "available"}
    with pytest.raises(UserError, match="blocked by --plugins no:One"):
        registry.get("loader", "one")


def test_files_and_objects_are_added(make_plugin, tmp_path, monkeypatch):
    path = make_plugin("speculative", "from_file").target.removeprefix("file:")
    registry = PluginRegistry([], path)
    (row,) = registry.rows("speculative")
    assert registry.get("speculative", "from-file").spec.name == "from_file"
    assert len(row.sha256) == 64
    (tmp_path / "some_module.py").write_text(
        f"import importlib.util as u\ns = u.spec_from_file_location('q', {path!r})\n"
        "obj = u.module_from_spec(s)\ns.loader.exec_module(obj)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    added = PluginRegistry([], "some_module:obj")
    assert added.get("speculative", "from_file").row.target == "some_module:obj"


def test_every_wrong_word_is_reported(make_plugin, tmp_path):
    (tmp_path / "empty.py").write_text("")
    words = f"lodr,no:nothing,./missing.py,{tmp_path / 'empty.py'},no_module:x"
    with pytest.raises(ConfigError) as caught:
        PluginRegistry([make_plugin("loader", "loader_a")], words)
    assert len(caught.value.problems) == 5
    assert "'loader_a'" in caught.value.problems[0]
    assert "no such file" in caught.value.problems[2]
    assert "KIND" in caught.value.problems[3]


def test_two_packages_with_one_name_matter_only_when_chosen(make_plugin):
    rows = [make_plugin("loader", "same", distribution="one"), make_plugin("loader", "same", distribution="two")]
    registry = PluginRegistry(rows)
    assert all(item.status == "available" and "also offered by" in item.reason for item in listing(registry))
    with pytest.raises(UserError, match=r"one 1 \(write one:same\) and two 1 \(write two:same\)"):
        registry.get("loader", "same")
    assert registry.get("loader", "two:same").row.distribution == "two"
    assert PluginRegistry(rows, "no:one:same").get("loader", "same").row.distribution == "two"


def test_aliases_lead_to_the_plugin_itself(make_plugin):
    rows = [
        make_plugin("quantization", "real"),
        make_plugin("quantization", "other", alias_of="real"),
        make_plugin("quantization", "loop", alias_of="loop"),
        make_plugin("quantization", "chain", alias_of="other"),
    ]
    registry = PluginRegistry(rows)
    assert registry.get("quantization", "other").row.name == "real"
    assert [row.name for row, _ in registry.candidates("quantization")] == ["real"]
    with pytest.raises(ManifestError, match="alias of itself"):
        registry.get("quantization", "loop")
    assert registry.get("quantization", "chain").row.name == "real"


def test_unknown_names_name_the_nearest(make_plugin):
    with pytest.raises(UserError, match=r"no such plugin; known: loader_a\. Did you mean 'loader_a'\?"):
        PluginRegistry([make_plugin("loader", "loader_a")]).get("loader", "loadr_a")


def test_broken_plugins_are_rows_and_leave_others_alone(make_plugin):
    rows = [make_plugin("loader", "bad", "1 / 0"), make_plugin("loader", "good")]
    registry = PluginRegistry(rows)
    bad, good = listing(registry)
    assert (bad.status, good.status) == ("broken", "available")
    assert "ZeroDivisionError" in bad.reason and "Traceback" in bad.details
    assert registry.get("loader", "good").spec.name == "good"
    with pytest.raises(ManifestError, match="ZeroDivisionError"):
        registry.get("loader", "bad")
