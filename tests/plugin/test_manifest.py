"""A manifest is checked before it is believed; every failure is a sentence that names plugin and distribution."""

from pathlib import Path

import pytest

from core.api.config import ResolvedPlugin
from core.api.errors import UserError
from core.plugin.manifest import ManifestError, load_manifest


def test_a_sound_manifest(make_plugin):
    manifest = load_manifest(make_plugin("loader", "good", summary="fine", priority=3))
    assert (manifest.spec.summary, manifest.spec.priority, manifest.contract) == ("fine", 3, 1)
    assert manifest.implements("core_load") and not manifest.implements("core_probe")
    assert manifest.call("core_claim", facts=None) is None
    assert manifest.call("core_supports", query=None) == []


@pytest.mark.parametrize(
    "body, words",
    [
        ("raise ImportError('no vendor library')", ["cannot be imported", "ImportError: no vendor library"]),
        ("import sys; sys.exit(3)", ["SystemExit: 3"]),
        ("CONTRACT = 99", ["CONTRACT is 99", "upgrade the engine"]),
        ("CONTRACT = -4", ["CONTRACT is -4", "upgrade the plugin"]),
        ("CONTRACT = 'one'", ["no integer CONTRACT"]),
        ("del CONTRACT", ["no integer CONTRACT"]),
        ("@hookimpl\ndef core_clam(facts): ...", ["hooks are wrong", "core_clam"]),
        ("@hookimpl\ndef core_claim(fact): ...", ["hooks are wrong", "fact"]),
        ("@hookimpl\ndef core_spec(): return PluginSpec(name='other')", ["names itself 'other'", "expected 'bad'"]),
        ("@hookimpl\ndef core_spec(): return {}", ["core_spec answered {}", "a PluginSpec"]),
        ("@hookimpl\ndef core_spec(): return 1 / 0", ["core_spec failed", "ZeroDivisionError"]),
    ],
)
def test_what_makes_a_manifest_broken(make_plugin, body, words):
    row = make_plugin("loader", "bad", body, distribution="some-package")
    with pytest.raises(ManifestError) as caught:
        load_manifest(row)
    for word in [*words, "loader plugin 'bad'", "some-package 1"]:
        assert word in str(caught.value)


def test_reserved_names_are_refused(make_plugin):
    with pytest.raises(ManifestError, match="'auto' is a reserved word"):
        load_manifest(make_plugin("loader", "auto"))


def test_the_contract_is_read_before_the_spec(make_plugin):
    row = make_plugin("loader", "late", "CONTRACT = 99\n@hookimpl\ndef core_spec(): raise AssertionError('was called')")
    with pytest.raises(ManifestError, match="CONTRACT is 99"):
        load_manifest(row)


def test_the_contract_before_this_one_is_accepted(make_plugin):
    assert load_manifest(make_plugin("loader", "old", "CONTRACT = 0")).contract == 0


def test_the_traceback_is_kept(make_plugin):
    with pytest.raises(ManifestError) as caught:
        load_manifest(make_plugin("loader", "bad", "raise ValueError('deep')"))
    assert "Traceback" in caught.value.details and "deep" in caught.value.details


@pytest.mark.parametrize(
    "hook, body, arguments, words",
    [
        ("core_claim", "def core_claim(facts): return 5", {"facts": None}, "a sentence or None"),
        ("core_supports", "def core_supports(query): return ['no']", {"query": None}, "a list of Reason"),
        ("core_propose", "def core_propose(view): return {'a': 1}", {"view": None}, "a dict of Proposal"),
        ("core_probe", "def core_probe(): return 'here'", {}, "a Probe"),
        (
            "core_supports",
            "def core_supports(query): raise KeyError('x')",
            {"query": None},
            "core_supports failed: KeyError",
        ),
        ("core_load", "def core_load(context): return None", {"context": None}, "an object of the kind's contract"),
    ],
)
def test_answers_are_checked(make_plugin, hook, body, arguments, words):
    manifest = load_manifest(make_plugin("loader", "odd", f"@hookimpl\n{body}"))
    with pytest.raises(ManifestError, match=words):
        manifest.call(hook, **arguments)


def test_a_plugins_own_user_error_reaches_the_user(make_plugin):
    body = "from core.api.errors import UserError\n@hookimpl\ndef core_load(context): raise UserError('say please')"
    manifest = load_manifest(make_plugin("loader", "polite", body))
    with pytest.raises(UserError, match="say please"):
        manifest.call("core_load", context=None)


def test_a_target_may_name_an_object(tmp_path, monkeypatch, make_plugin):
    source = Path(make_plugin("loader", "inner").target.removeprefix("file:")).read_text()
    box = "\nimport types\nbox = types.SimpleNamespace(CONTRACT=CONTRACT, core_spec=core_spec, core_load=core_load)\n"
    (tmp_path / "holder_of_plugins.py").write_text(source + box)
    monkeypatch.syspath_prepend(tmp_path)
    row = ResolvedPlugin(kind="loader", name="inner", target="holder_of_plugins:box")
    assert load_manifest(row).spec.name == "inner"


def test_a_hook_may_have_another_function_name(make_plugin):
    body = "@hookimpl(specname='core_claim')\ndef mine(facts): return 'by another name'\n"
    assert load_manifest(make_plugin("loader", "renamed", body)).call("core_claim", facts=None) == "by another name"


def test_a_module_without_hooks_is_told_what_is_missing(make_plugin):
    row = make_plugin("loader", "bare", header="CONTRACT = 1\ndef hookimpl(f): return f\nPluginSpec = dict\n")
    with pytest.raises(ManifestError, match="the manifest has no core_spec"):
        load_manifest(row)
