"""`core plugins check` and `core plugins new` as a user meets them."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from core.api.config import ResolvedPlugin
from core.api.errors import UserError
from core.commands.main import main
from core.plugin.hookspecs import LoadContext
from core.plugin.manifest import load_manifest
from core.plugin.table import load_plugin
from core_kit import cases
from core_kit.runner import Task, findings
from core_kit.skeleton import FORMS, TEMPLATES, kinds, write_package

ROOT = Path(__file__).parents[2]
HEADER = "from core.plugin.hookspecs import PluginSpec, hookimpl\nCONTRACT = 1\nKIND = 'speculative'\n"
SPEC = "@hookimpl\ndef core_spec(): return PluginSpec(name='odd', summary='odd')\n"


def core(*words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
    return subprocess.run(
        [sys.executable, "-P", "-m", "core", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def odd(tmp_path, load):
    path = tmp_path / "odd.py"
    path.write_text(HEADER + SPEC + f"@hookimpl\ndef core_load(context):\n    {load}\n")
    return str(path)


def test_json_holds_every_finding_and_the_exit_code_says_well_done():
    done = core("plugins", "check", "speculative.ngram", "--json")
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads(done.stdout)
    assert (entry["kind"], entry["name"], entry["distribution"]) == ("speculative", "ngram", "core-engine-speculative")
    assert entry["failed"] == entry["warned"] == 0 and entry["passed"] + entry["skipped"] == len(entry["findings"])
    assert entry["passed"] >= 14 and all(finding["seconds"] >= 0 for finding in entry["findings"])


def test_a_broken_promise_is_a_sentence_and_exit_code_1(tmp_path):
    done = core("plugins", "check", "odd", "--plugins", odd(tmp_path, "raise OSError('no chip')"))
    assert done.returncode == 1
    assert "✗ core_load builds an object" in done.stdout
    assert "core_load failed: OSError: no chip." in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_check_leaves_no_files_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)  # here, too, it is read again
    found = list(findings(Task("quantization", "int8")))
    assert found and all(finding.verdict in ("passed", "skipped") for finding in found)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "load, limit, words",
    [
        ("import os; os.abort()", 60, "signal 6"),
        ("import os; os._exit(3)", 60, "exit code 3"),
        ("import ctypes; ctypes.string_at(0)", 60, "signal 11"),
        pytest.param("import time; time.sleep(600)", 10, "no answer within 10 s", marks=pytest.mark.slow),
    ],
)
def test_a_crash_or_a_hang_is_the_last_finding(tmp_path, load, limit, words):
    found = list(findings(Task("speculative", "odd", plugins=odd(tmp_path, load)), limit))
    assert found[-1].verdict == "failed" and words in found[-1].sentence
    assert found[-1].check.startswith("core_load builds")
    assert [finding.verdict for finding in found[1:-1]] == ["passed"] * (len(found) - 2)


@pytest.mark.parametrize(
    "words, expected",
    [
        (["check", "ngramm"], "Did you mean 'ngram'?"),
        (["check"], "name a plugin or a distribution"),
        (["check", "ngram", "--jsn"], "Did you mean '--json'?"),
        (["check", "ngram", "--arguments", "{"], "not JSON"),
        (["check", "ngram", "--arguments", "[]"], "expected a JSON object"),
        (["check", "ngram", "--time-limit", "soon"], "expected a number of seconds"),
        (["new"], "say what to make"),
        (["new", "atention", "x"], "Did you mean 'attention'?"),
        (["new", "attention", "9lives"], "expected a name"),
        (["new", "attention", "auto"], "expected a name"),
        (["new", "attention", "a/b"], "expected a name"),
        (["new", "attention", "class"], "expected a name"),
        (["new", "attention", "x", "y"], "unexpected argument"),
        (["new", "attention", "x", "--into", "nowhere"], "no pyproject.toml there"),
    ],
)
def test_mistakes_are_sentences(words, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", *words]) == 2
    assert expected in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_distribution_names_all_its_plugins():
    from core.plugin.registry import PluginRegistry
    from core_commands.cli.plugin.check import named_rows

    registry = PluginRegistry()
    assert len(named_rows(registry, "core-engine-quantization")) == len(
        [r for r in registry.rows() if r.distribution == "core-engine-quantization"]
    )
    assert [row.kind for row in named_rows(registry, "gguf")] == ["quantization", "loader", "adapter", "processor"]
    assert [row.kind for row in named_rows(registry, "core-engine-loaders:loader.gguf")] == ["loader"]


def test_a_manifest_that_cannot_be_used_is_one_finding(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text(
        "from core.plugin.hookspecs import PluginSpec, hookimpl\nCONTRACT = 1\nKIND = 'loader'\n"
        "@hookimpl\ndef core_spec(): return PluginSpec(name='wrong')\n"
        "@hookimpl\ndef core_load(ctx): return object()\n"
    )
    first, *others = findings(Task("loader", "wrong", plugins=str(path)))
    assert first.verdict == "failed" and "core_load takes (ctx), expected (context)" in first.sentence
    assert {finding.verdict for finding in others} == {"skipped"}


def test_an_empty_list_of_capabilities_is_told_as_empty(tmp_path):
    path = tmp_path / "empty.py"
    path.write_text(
        "from core.plugin.hookspecs import PluginSpec, hookimpl\nCONTRACT = 1\nKIND = 'kernels'\n"
        "@hookimpl\ndef core_spec(): return PluginSpec(name='empty', summary='s', capabilities={'formats': []})\n"
        "@hookimpl\ndef core_load(context): return object()\n"
    )
    (case,) = [case for case in cases("kernels", "empty", plugins=str(path)) if "capabilities whose" in str(case)]
    assert "'formats' is empty" in case.finding().sentence and "expected a list" not in case.finding().sentence


def test_a_model_is_given_to_the_kinds_that_take_one(monkeypatch, capsys):
    tasks = []
    monkeypatch.setattr("core_commands.cli.plugin.check.findings", lambda task, limit: tasks.append(task) or iter(()))
    for part in ("loaders", "quantization"):
        assert main(["plugins", "check", f"core-engine-{part}", "--model", "somewhere", "--json"]) == 0
    given = {kind: {task.model for task in tasks if task.kind == kind} for kind in {task.kind for task in tasks}}
    assert given == {"loader": {"somewhere"}, "quantization": {"somewhere"}}
    capsys.readouterr()
    assert main(["plugins", "check", "fcfs", "--model", "somewhere"]) == 2
    assert "plugins of kind policy are checked without a checkpoint" in capsys.readouterr().err


def test_a_plugin_is_added_to_a_package(tmp_path, monkeypatch):
    folder, *_ = write_package("attention", "acme", tmp_path)
    before = (folder / "core_acme" / "manifest.py").read_text()
    assert main(["plugins", "new", "quantization", "Acme-Four", "--into", str(folder)]) == 0
    assert main(["plugins", "new", "attention", "other", "--into", str(folder)]) == 0
    points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    assert points == {
        "core.attention": {"other": "core_acme.other_manifest", "acme": "core_acme.manifest"},
        "core.quantization": {"acme_four": "core_acme.acme_four_manifest"},
    }
    assert (folder / "core_acme" / "manifest.py").read_text() == before
    monkeypatch.syspath_prepend(folder)
    row = ResolvedPlugin(kind="quantization", name="acme_four", target="core_acme.acme_four_manifest")
    loaded = load_plugin(load_manifest(row), LoadContext())
    assert type(loaded).__module__ == "core_acme.acme_four_method"
    for module in [module for module in sys.modules if module.startswith("core_acme")]:
        del sys.modules[module]


@pytest.mark.parametrize(
    "words, expected",
    [
        (["attention", "acme"], "exists already"),
        (["quantization", "acme"], "exists already"),
        (["policy", "x", "--path", "."], "leave --path out"),
    ],
)
def test_nothing_of_a_package_is_overwritten(tmp_path, capsys, words, expected):
    folder, *_ = write_package("attention", "acme", tmp_path)
    (folder / "core_acme" / "acme_manifest.py").write_text("")
    before = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert main(["plugins", "new", *words, "--into", str(folder)]) == 2
    assert expected in capsys.readouterr().err
    assert {path: path.read_text() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("kind", [*kinds(), *FORMS])
def test_a_new_package_is_small_and_has_no_trace_of_the_template(kind, tmp_path):
    folder, *files = write_package(kind, "Brand-New", tmp_path)
    assert folder.name == "core-brand-new"
    names = {str(path.relative_to(folder)) for path in files}
    assert {"pyproject.toml", "README.md", "core_brand_new/manifest.py", "tests/test_brand_new.py"} <= names
    texts = [path.read_text() for path in files]
    assert not any(
        word in text for text in texts for word in ("my_plugin", "my-plugin", "MyPlugin", "my_kind", "my_group")
    )
    assert sum(len(text.splitlines()) for text in texts) <= 260
    with pytest.raises(UserError, match="exists already"):
        write_package(kind, "brand_new", tmp_path)


def test_every_template_is_shipped():
    """A distribution that flit builds has all files of its module's folder."""
    project = tomllib.loads((TEMPLATES.parents[1] / "pyproject.toml").read_text())
    assert project["tool"]["flit"]["module"]["name"] == TEMPLATES.parent.name
