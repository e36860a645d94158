"""Every way to be broken is a row and a sentence, and nobody else's trouble. All plugins here are installed distributions."""

import importlib
import json
import sys

import pytest

from core.api.errors import ConfigError, CoreError, PluginError, UserError
from core.api.specs import AttentionQuery, AttentionSpec, KernelQuery
from core.plugin.discovery import discover
from core.plugin.editable import stale
from core.plugin.hookspecs import CONTRACT, LoadContext
from core.plugin.listing import listing
from core.plugin.manifest import ManifestError, load_manifest
from core.plugin.registry import PluginRegistry
from core.plugin.table import PluginTable
from core_config.resolve import resolve
from core_config.selection import (
    select_attention,
    select_kernels,
    select_loader,
    select_model,
    select_quantization,
    select_speculative,
)
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

FILES = FileFacts("m", "/m", True, ("weights.x",))
FACTS = CheckpointFacts("m", "x", "strange")
QUERY = AttentionQuery(AttentionSpec(4, 2, 64, 64, 0.125), "cpu", "float32", 16)
HANG = "import time; time.sleep(60)"
SOUND = "@hookimpl\ndef core_claim(facts): return 'mine'\n"
HEADER_WITHOUT_CONTRACT = "from core.plugin.hookspecs import PluginSpec, hookimpl\n"


@pytest.fixture(autouse=True)
def short_limits(monkeypatch):
    monkeypatch.setattr("core.plugin.rehearsal.start.__defaults__", (1.0,))


MANIFESTS = {
    "raises at import": ("raise RuntimeError('no luck')", ["cannot be imported", "RuntimeError: no luck"]),
    "exits at import": ("import sys; sys.exit('goodbye')", ["SystemExit: goodbye"]),
    "lacks a vendor library": ("import vendor_sdk", ["No module named 'vendor_sdk'", "install 'vendor_sdk' in"]),
    "hangs at import": (HANG, ["no answer within 1 s"]),
    "is for a later engine": (f"CONTRACT = {CONTRACT + 1}", [f"CONTRACT is {CONTRACT + 1}", "upgrade the engine"]),
    "is for an older engine": (f"CONTRACT = {CONTRACT - 2}", [f"CONTRACT is {CONTRACT - 2}", "upgrade the plugin"]),
    "has no number": ("del CONTRACT", ["no integer CONTRACT", f"expected CONTRACT = {CONTRACT}"]),
    "asks for an argument that no hook has": (
        "@hookimpl\ndef core_claim(file): ...",
        ["hooks are wrong: core_claim takes (file), expected (facts) or fewer of these"],
    ),
    "has a hook that does not exist": (
        "@hookimpl\ndef core_clam(facts): ...",
        ["hooks are wrong: 'core_clam' is no hook", "Did you mean 'core_claim'?"],
    ),
    "raises in its spec": ("@hookimpl\ndef core_spec(): return {}['name']", ["core_spec failed: KeyError"]),
    "hangs in its spec": (f"@hookimpl\ndef core_spec():\n    {HANG}", ["no answer within"]),
    "has a priority that is no number": (
        "@hookimpl\ndef core_spec(): return PluginSpec(name='bad', priority='9', capabilities=None)",
        ["core_spec answered", "priority = '9', expected int", "capabilities = None, expected Mapping"],
    ),
    "constrains nothing known": (
        "@hookimpl\ndef core_spec(): return PluginSpec(name='bad', constraints={'dtyp': ['bfloat16']})",
        ["'dtyp'", "Did you mean 'dtype'?"],
    ),
    "constrains to an impossible value": (
        "@hookimpl\ndef core_spec(): return PluginSpec(name='bad', constraints={'dtype': ['bf17']})",
        ["dtype to 'bf17'", "one of 'auto', 'bfloat16'"],
    ),
}


@pytest.mark.parametrize("source, words", MANIFESTS.values(), ids=MANIFESTS)
def test_a_broken_manifest_is_a_row_with_a_sentence(install, source, words):
    rows = install("bad-package", "3.1", {"core.loaders": {"bad": source}})
    rows += install("good-package", "1.0", {"core.loaders": {"good": SOUND}})
    registry = PluginRegistry(rows)
    listed = {item.row.name: item for item in listing(registry)}
    assert listed["bad"].status == "broken" and listed["good"].status == "available"
    for word in [*words, "loader plugin 'bad' (bad-package 3.1)"]:
        assert word in listed["bad"].reason
    assert listed["bad"].reason.endswith(".") and "\n" not in listed["bad"].reason
    choice = select_loader(registry, None, FILES)
    assert choice.selection.chosen == ("good",)
    assert [c.reasons for c in choice.selection.candidates if c.name == "bad"] == [(listed["bad"].reason,)]
    with pytest.raises(ManifestError, match=r"bad-package 3\.1"):
        registry.get("loader", "bad")


HOOKS = {
    "core_claim of a loader": ("loader", "core_claim(facts)", lambda r, n: select_loader(r, n, FILES), False),
    "core_claim of a method": (
        "quantization",
        "core_claim(facts)",
        lambda r, n: select_quantization(r, n, FACTS),
        False,
    ),
    "core_claim of a family": ("model", "core_claim(facts)", lambda r, n: select_model(r, FACTS), False),
    "core_supports of a method": (
        "quantization",
        "core_supports(query)",
        lambda r, n: select_quantization(r, n, FACTS),
        True,
    ),
    "core_supports of attention": (
        "attention",
        "core_supports(query)",
        lambda r, n: select_attention(r, n, QUERY, [], ""),
        True,
    ),
    "core_supports of a proposer": (
        "speculative",
        "core_supports(query)",
        lambda r, n: select_speculative(r, n or "good", FACTS),
        True,
    ),
    "core_supports of kernels": (
        "kernels",
        "core_supports(query)",
        lambda r, n: select_kernels(r, "cpu", [n or "auto"], ["bad", "good"]),
        True,
    ),
}
GROUPS = {
    "loader": "core.loaders", "quantization": "core.quantization", "model": "core.models",
    "attention": "core.attention", "kernels": "core.kernels", "speculative": "core.speculative",
    "platform": "core.platforms",
}  # fmt: skip


@pytest.mark.parametrize(
    "body, words", [("raise OSError('driver lost')", "OSError: driver lost"), (HANG, "no answer within 1 s")]
)
@pytest.mark.parametrize("kind, hook, select, explicit", HOOKS.values(), ids=HOOKS)
def test_raising_and_hanging_hooks_lose_and_say_why(install, kind, hook, select, explicit, body, words):
    claim = "" if "claim" in hook or kind not in ("quantization",) else SOUND
    rows = install("bad-package", "3.1", {GROUPS[kind]: {"bad": f"{claim}@hookimpl\ndef {hook}:\n    {body}"}})
    rows += install(
        "good-package", "1.0", {GROUPS[kind]: {"good": SOUND if kind != "attention" and kind != "kernels" else ""}}
    )
    registry = PluginRegistry(rows)
    choice = select(registry, None)
    assert choice.selection.chosen == ("good",)
    (lost,) = [c for c in choice.selection.candidates if c.name == "bad"]
    if kind != "speculative":  # proposers are named by the user, the others are not even asked
        assert words in lost.reasons[0] and "bad-package 3.1" in lost.reasons[0]
    if explicit and body is not HANG:  # what the user named is called plainly: it may take as long as it likes
        with pytest.raises(CoreError, match=words):
            select(registry, "bad")


@pytest.mark.parametrize(
    "body, words",
    [
        ("raise OSError('driver lost')", "OSError: driver lost"),
        ("import vendor_sdk", "install 'vendor_sdk'"),
        ("return None", "expected an object"),
        ("return 5", "without on_start, propose, on_finished"),
    ],
)
def test_a_load_that_fails_is_a_sentence(install, body, words):
    rows = install(
        "bad-package", "3.1", {"core.speculative": {"bad": f"@hookimpl\ndef core_load(context):\n    {body}"}}
    )
    with pytest.raises(PluginError, match=words) as caught:
        PluginTable(rows).load("speculative", "bad", LoadContext())
    assert "speculative plugin 'bad' (bad-package 3.1)" in str(caught.value)


def test_a_method_with_another_signature_is_a_sentence(install):
    source = """
    class Proposer:
        def on_start(self, key, token_ids): ...
        def propose(self, batch, temperature): ...
        def on_finished(self, key): ...
    @hookimpl
    def core_load(context): return Proposer()
    """
    rows = install("bad-package", "3.1", {"core.speculative": {"bad": source}})
    with pytest.raises(PluginError) as caught:
        PluginTable(rows).load("speculative", "bad", LoadContext())
    assert "cannot be called as propose(batch)" in str(caught.value) and "'temperature'" in str(caught.value)


def test_wishes_and_numerics_that_raise_are_one_problem(install, monkeypatch, tiny_llama):
    """The hooks that are asked after a choice: the configuration is refused with the plugin's sentence, nothing else breaks."""
    body, words = "raise OSError('driver lost')", "OSError: driver lost"
    probe = "@hookimpl\ndef core_probe(): return Probe((Device('bad:0', '', 1 << 30),))\n"
    backend = "@hookimpl\ndef core_supports(query): return []\n"
    install("bad-package", "3.1", {"core.platforms": {"bad": f"{probe}@hookimpl\ndef core_propose(view):\n    {body}"}})
    install(
        "bad-numbers", "3.2", {"core.attention": {"worse": f"{backend}@hookimpl\ndef core_numerics():\n    {body}"}}
    )
    monkeypatch.setenv("PYTHONPATH", f"{install.site}:{':'.join(sys.path)}")
    registry = PluginRegistry(discover())
    for arguments, package in (
        ({"device": "bad"}, "bad-package 3.1"),
        ({"attention_backend": "worse"}, "bad-numbers 3.2"),
    ):
        given = {"model": str(tiny_llama), "device": "cpu", "max_model_len": 64, **arguments}
        with pytest.raises(ConfigError) as caught:
            resolve(given, context="llm", environ={}, registry=registry)
        (problem,) = caught.value.problems
        assert words in problem and package in problem
    given = {"model": str(tiny_llama), "device": "cpu", "max_model_len": 64, "attention_backend": "torch_sdpa"}
    assert resolve(given, context="llm", environ={}, registry=registry).numerics


def test_probes_that_raise_or_hang_leave_the_others(install, monkeypatch):
    sound = "@hookimpl\ndef core_probe(): return Probe((Device('fine', '', 1),))"
    hang = f"@hookimpl\ndef core_probe():\n    {HANG}"
    rows = install(
        "some-platforms",
        "1.0",
        {
            "core.platforms": {
                "fine": sound,
                "raises": "@hookimpl\ndef core_probe(): raise OSError('driver lost')",
                "hangs": hang,
            }
        },
    )
    monkeypatch.setenv("PYTHONPATH", f"{install.site}:{':'.join(sys.path)}")
    monkeypatch.setattr("core.plugin.rehearsal.start.__defaults__", (3.0,))
    listed = {item.row.name: item for item in listing(PluginRegistry(rows))}
    assert {name: item.status for name, item in listed.items()} == {
        "fine": "available",
        "raises": "broken",
        "hangs": "unavailable",
    }
    assert "driver lost" in listed["raises"].reason
    assert "no answer within 3 s" in listed["hangs"].reason


def test_capabilities_that_cannot_be_compared_are_a_reason(install):
    spec = "@hookimpl\ndef core_spec(): return PluginSpec(name='bad', capabilities={'devices': 5})"
    rows = install("bad-package", "3.1", {"core.attention": {"bad": spec}})
    rows += install("good-package", "1.0", {"core.attention": {"good": ""}})
    choice = select_attention(PluginRegistry(rows), None, QUERY, [], "cpu")
    assert choice.selection.chosen == ("good",)
    with pytest.raises(PluginError, match=r"attention plugin 'bad' \(bad-package 3\.1\): .*cannot be understood"):
        select_attention(PluginRegistry(rows), "bad", QUERY, [], "cpu")


def test_a_package_for_a_later_engine_is_told(install):
    rows = install("early", "1.0", {"core.loaders": {"early": SOUND}})
    rows += install("fitting", "1.0", {"core.loaders": {"fitting": SOUND}})
    for name, asked in {"early": "core-engine>=99 ; python_version > '3'", "fitting": "core_engine>=0.0.1"}.items():
        metadata = install.site / f"{name}-1.0.dist-info" / "METADATA"
        metadata.write_text(f"{metadata.read_text()}Requires-Dist: numpy\nRequires-Dist: {asked}\n")
    early, fitting = listing(PluginRegistry(rows))
    assert early.reason.startswith("early asks for core-engine>=99, this is")
    assert fitting.reason == ""


def test_two_packages_with_one_name_are_fatal_only_when_chosen(install):
    rows = install("one", "1.0", {"core.loaders": {"same": SOUND}})
    rows += install("two", "1.0", {"core.loaders": {"same": SOUND}, "core.speculative": {"other": ""}})
    registry = PluginRegistry(rows)
    assert all(item.status == "available" for item in listing(registry))
    with pytest.raises(UserError, match=r"one 1\.0 \(write one:same\) and two 1\.0"):
        registry.get("loader", "same")
    assert registry.get("speculative", "other").spec.name == "other"


def test_a_manifest_that_imports_torch_costs_and_is_told(install, tmp_path):
    (install.site / "torch").mkdir()
    (install.site / "torch" / "__init__.py").write_text("import time; time.sleep(0.05)")
    rows = install("heavy-package", "1.0", {"core.speculative": {"heavy": "import torch"}})
    code = f"""
import sys
sys.path[:0] = [{str(install.site)!r}]
from core.api.config import ResolvedPlugin
from core.plugin.listing import listing
from core.plugin.registry import PluginRegistry
import msgspec
rows = msgspec.json.decode(sys.argv[1], type=list[ResolvedPlugin])
(item,) = listing(PluginRegistry(rows))
print(item.status, item.reason)
"""
    import msgspec

    told = run_python("-c", code, msgspec.json.encode(rows).decode())
    assert told.startswith(
        "available speculative plugin 'heavy' (heavy-package 1.0): the manifest imports torch, which costs"
    )
    assert "0.1 s; only core_load may import it" in told


def test_a_stale_editable_installation_says_what_to_do(install, tmp_path, monkeypatch):
    source = tmp_path / "checkout"
    rows = install("edited", "1.0", {"core.loaders": {"mine": SOUND}}, editable=source)
    monkeypatch.syspath_prepend(str(source))
    url = json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}})
    (install.site / "edited-1.0.dist-info" / "direct_url.json").write_text(url)
    project = (
        '[project]\nname = "edited"\nversion = "1.0"\n[project.entry-points."core.loaders"]\nmine = "edited.mine"\n'
    )
    (source / "pyproject.toml").write_text(project)
    assert stale("edited") == ""
    (source / "pyproject.toml").write_text(project + 'second = "edited.second"\n')
    (listed,) = listing(PluginRegistry(rows))
    assert listed.status == "available"
    assert "core.loaders:second" in listed.reason and f"pip install -e {source}" in listed.reason
    (source / "pyproject.toml").write_text(project.replace('"1.0"', '"1.1"'))
    assert "as 1.0, but" in stale("edited") and "is 1.1" in stale("edited")
    (source / "edited" / "mine.py").rename(source / "edited" / "moved.py")
    del sys.modules["edited.mine"]
    (broken,) = listing(PluginRegistry(rows))
    assert broken.status == "broken" and f"pip install -e {source}" in broken.reason


def test_a_worker_whose_installation_is_gone_or_has_lost_the_module_refuses(install):
    (row,) = install("moved", "1.0", {"core.speculative": {"mine": ""}})
    (install.site / "moved" / "mine.py").unlink()
    sys.modules.pop("moved.mine", None)
    importlib.invalidate_caches()
    with pytest.raises(PluginError, match=r"moved 1\.0.*No module named 'moved\.mine'; install moved again"):
        PluginTable([row]).load("speculative", "mine", LoadContext())


def test_a_worker_with_another_version_refuses(install):
    (row,) = install("versioned", "1.0", {"core.speculative": {"mine": ""}})
    info = install.site / "versioned-1.0.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: versioned\nVersion: 2.0\n")
    info.rename(install.site / "versioned-2.0.dist-info")
    with pytest.raises(PluginError, match=r"chosen from versioned 1\.0, but here 2\.0 is installed"):
        PluginTable([row]).load("speculative", "mine", LoadContext())


@pytest.mark.parametrize("number", [CONTRACT, CONTRACT - 1])
def test_this_contract_and_the_one_before_are_accepted(install, number):
    (row,) = install("aged", "1.0", {"core.loaders": {"mine": f"CONTRACT = {number}"}})
    assert load_manifest(row).contract == number


def test_kernels_that_serve_one_operation_are_candidates(install):
    source = (
        "@hookimpl\ndef core_supports(query): return [] if query.op == 'linear' else [Reason('op', 'linear', query.op)]"
    )
    rows = install("narrow", "1.0", {"core.kernels": {"narrow": source}})
    assert select_kernels(PluginRegistry(rows), "cpu", ["narrow"]).selection.chosen == ("narrow",)
    assert listing(PluginRegistry(rows))[0].status == "available"
    assert load_manifest(rows[0]).call("core_supports", query=KernelQuery("rms_norm", "cpu"))


def run_python(*words):
    import os
    import subprocess
    from pathlib import Path

    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-P", *words], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
