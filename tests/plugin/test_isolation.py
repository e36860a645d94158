"""What is installed is not chosen: plugins of other packages neither break, nor hang, nor change what works without them."""

import contextlib
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core.api.errors import PluginError
from core.api.specs import AttentionQuery, AttentionSpec
from core.plugin.discovery import ENGINE
from core.plugin.registry import PluginRegistry
from core_config.resolve import resolve
from core_config.selection import select_attention, select_kernels, select_loader, select_platform, select_quantization
from core_config.selection.ranking import NOT_CHOSEN
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts
from tests.inside import core_of

ROOT = Path(__file__).parents[2]
FILES = FileFacts("m", "/m", True, ("weights.x",))
QUERY = AttentionQuery(AttentionSpec(4, 2, 64, 64, 0.125), "cpu", "float32", 16)
PLAIN = CheckpointFacts("m", "x", "llama", tensor_dtypes=("BF16", "F32"))
PACKED = CheckpointFacts("m", "x", "llama", tensor_dtypes=("BF16", "U8"))
CLAIM = "@hookimpl\ndef core_claim(facts): return 'mine'\n"
SUPPORT = "@hookimpl\ndef core_supports(query): return []\n"
REFUSE = "@hookimpl\ndef core_supports(query): return [Reason('thing', 'more')]\n"
UNTOUCHED = "raise SystemExit('this manifest was imported')"
HANGS = "import time; time.sleep(3600)"
SETTINGS = {"max_model_len": 64, "kv_cache_memory_bytes": 4 << 20, "use_tqdm_on_load": False}
PROMPTS = [{"prompt_token_ids": [1, *range(40, 60)]}, {"prompt_token_ids": [1, 70]}]

STAGES = {
    "loader": ("core.loaders", CLAIM, "", lambda r: select_loader(r, None, FILES), "--load-format"),
    "quantization": ("core.quantization", CLAIM, "", lambda r: select_quantization(r, None, PACKED), "--quantization"),
    "attention": (
        "core.attention",
        SUPPORT,
        REFUSE,
        lambda r: select_attention(r, None, QUERY, [], "cpu"),
        "--attention-backend",
    ),
}


@pytest.mark.parametrize("kind", STAGES)
def test_strangers_are_asked_only_for_what_nobody_else_can_do(install, make_plugin, kind):
    group, can, cannot, select, flag = STAGES[kind]
    own = make_plugin(kind, "own", can, distribution=ENGINE, priority=-5)
    strangers = install("strange", "1.0", {group: {"better": can}})
    strangers += install("hostile", "1.0", {group: {"worse": UNTOUCHED}})
    choice = select(PluginRegistry([own, *strangers]))
    assert choice.selection.chosen == ("own",)
    told = {c.name: (c.verdict, c.reasons) for c in choice.selection.candidates}
    assert told["worse"] == (NOT_CHOSEN, (f"name it with {flag} worse",))
    assert not {"strange.better", "hostile.worse"} & set(sys.modules)
    unable = make_plugin(kind, "unable", cannot, distribution=ENGINE)
    choice = select(PluginRegistry([unable, *strangers]))
    assert choice.selection.chosen == ("better",)
    named = PluginRegistry([own, *strangers], "better")
    assert select(named).selection.chosen == ("better",), "--plugins NAME names it"


def test_a_method_that_claims_everything_does_not_get_plain_checkpoints(install):
    registry = PluginRegistry(install("strange", "1.0", {"core.quantization": {"grabs": CLAIM + SUPPORT}}))
    choice = select_quantization(registry, None, PLAIN)
    assert choice.selection.chosen == ()
    assert choice.selection.candidates[0].reasons == ("name it with --quantization grabs",)
    assert select_quantization(registry, "grabs", PLAIN).selection.chosen == ("grabs",)


def test_kernels_of_the_engine_the_platforms_package_and_its_wishes(install, make_plugin):
    own = make_plugin("kernels", "own", distribution=ENGINE, priority=5)
    rows = [own, *install("chip", "1.0", {"core.kernels": {"fused": SUPPORT}})]
    rows += install("wished", "1.0", {"core.kernels": {"liked": SUPPORT}})
    rows += install("hostile", "1.0", {"core.kernels": {"stray": UNTOUCHED}})

    def chosen(*arguments):
        choice = select_kernels(PluginRegistry(rows), "cpu", *arguments)
        return choice.selection.chosen

    assert chosen() == ("own",)
    assert chosen(["auto"], ["liked"], "chip") == ("liked", "own", "fused")
    assert chosen(["fused"]) == ("fused",)
    assert chosen(["fused", "auto", "own"]) == ("fused", "own")
    assert chosen([]) == ()
    with pytest.raises(PluginError, match=r"--kernels stray: kernels plugin 'stray' \(hostile 1\.0\).*SystemExit"):
        chosen(["stray"])


def test_a_strangers_chip_is_found_and_a_strangers_host_is_not(install, make_plugin, monkeypatch):
    def platform(name, processors):
        probe = f"@hookimpl\ndef core_probe(): return Probe((Device('{name}:0', '', 1, processors={processors}),))\n"
        return probe + f"@hookimpl\ndef core_spec(): return PluginSpec(name={name.partition(':')[0]!r}, priority=99)\n"

    own = make_plugin("platform", "cpu", platform("cpu", 4), distribution=ENGINE)
    hosts = install("hosts", "1.0", {"core.platforms": {"turbo": platform("turbo", 4)}})
    same = install("same", "1.0", {"core.platforms": {"quick": platform("quick", 0).replace("'quick:0'", "'cpu'")}})
    hostile = install("hostile", "1.0", {"core.platforms": {"worse": UNTOUCHED}})
    chips = install("chips", "1.0", {"core.platforms": {"chip": platform("chip", 0)}})
    monkeypatch.setenv("PYTHONPATH", f"{install.site}:{ROOT}")
    choice, device = select_platform(PluginRegistry([own, *hosts, *same, *hostile]), None)
    assert choice.selection.chosen == ("cpu",) and device.name == "cpu:0"
    assert "hosts.turbo" not in sys.modules, "it was asked in a process of its own"
    choice, device = select_platform(PluginRegistry([own, *hosts, *same, *chips]), None)
    assert choice.selection.chosen == ("chip",) and device.name == "chip:0"
    assert select_platform(PluginRegistry([own, *hosts]), "turbo")[1].name == "turbo:0"


def test_a_name_of_the_engines_own_means_the_engines_own(install, make_plugin):
    own = make_plugin("policy", "fcfs", distribution=ENGINE)
    (stranger,) = install("strange", "1.0", {"core.policies": {"fcfs": UNTOUCHED}})
    registry = PluginRegistry([stranger, own])
    assert registry.get("policy", "fcfs").row == own
    assert PluginRegistry([stranger, own], "strange:fcfs").blocked(own)


def answers(model, **settings):
    with LLM(str(model), **{**SETTINGS, **settings}) as llm:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        texts = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
        return texts, core_of(llm).executor.numerics


CHIP = """
@hookimpl
def core_probe(): return Probe((Device('chip:0', 'a chip', 1 << 30, 1 << 30, 1),))
@hookimpl
def core_propose(view): return {'dtype': Proposal('float32', ''), 'kernels': Proposal(['liked'], '')}
@hookimpl
def core_load(context):
    from core_platforms.cpu.runtime import CpuPlatform
    class Chip(CpuPlatform):
        def open(self, device, kernels): return super().open('cpu', kernels)
    return Chip(1)
"""


@pytest.mark.parametrize("body", ["raise OSError('driver lost')", "return object()"])
def test_kernels_that_fail_are_left_out_and_told_unless_they_were_named(install, monkeypatch, tiny_llama, caplog, body):
    broken = f"{SUPPORT}@hookimpl\ndef core_load(context):\n    {body}\n"
    numerics = "@hookimpl\ndef core_numerics(): return 'broken-1'\n"
    install("chip-package", "2.0", {"core.platforms": {"chip": CHIP}, "core.kernels": {"liked": broken + numerics}})
    monkeypatch.setenv("PYTHONPATH", f"{install.site}:{ROOT}")
    assert resolve({"model": str(tiny_llama), "device": "chip"}, context="llm", environ={}).numerics.startswith("bro")
    with caplog.at_level(logging.WARNING, logger="core"):
        found = answers(tiny_llama, device="chip")
    assert found == answers(tiny_llama, device="chip", kernels=[]) and found[1].startswith("torch-")
    (warning,) = [record.getMessage() for record in caplog.records if "liked" in record.getMessage()]
    assert "kernels plugin 'liked' (chip-package 2.0)" in warning and "--plugins no:liked" in warning
    assert "driver lost" in warning or "answered a object" in warning
    with pytest.raises(PluginError, match=r"kernels plugin 'liked' \(chip-package 2\.0\).*--plugins no:liked leaves"):
        answers(tiny_llama, device="chip", kernels=["liked"])


def test_a_start_without_the_engines_own_kernels_has_its_own_numerics_and_plan(monkeypatch, tiny_llama, caplog):
    pytest.importorskip("core_platforms.cpu._native")
    from core_platforms.cpu import kernels

    plan = resolve({"model": str(tiny_llama), "plugins": "no:cpu_native"}, context="llm", environ={})
    monkeypatch.setattr(kernels.NativeKernels, "__init__", lambda self, threads: {}["oops"])
    with caplog.at_level(logging.WARNING, logger="core"), LLM(str(tiny_llama), **SETTINGS) as llm:
        executor = core_of(llm).executor
        assert executor.numerics == plan.numerics and "cpu-native" not in executor.numerics.partition("/")[0]
        assert executor.worker.weights_nbytes == plan.memory.weights
    assert (
        sum("kernels plugin 'cpu_native' (core-engine-platforms" in record.getMessage() for record in caplog.records)
        == 1
    )


def test_a_found_platform_that_cannot_be_used_is_left_out(install, monkeypatch, tiny_llama):
    """Whether it fails when it is asked for wishes, or when it is loaded."""
    chip = (
        CHIP.replace("1 << 30, 1)", "1 << 30)")
        + "@hookimpl\ndef core_spec(): return PluginSpec(name='chip', priority=200)"
    )
    for hook in ("core_propose(view)", "core_load(context)"):
        (row,) = install(
            f"chip-{hook[5]}", "2.0", {"core.platforms": {"chip": f"{chip}\n@hookimpl\ndef {hook}: 1 / 0"}}
        )
        monkeypatch.setenv("PYTHONPATH", f"{install.site}:{ROOT}")
        resolution = resolve({"model": str(tiny_llama)}, context="llm", environ={})
        if hook.startswith("core_load"):
            assert resolution.engine.device == "chip:0"
            resolution = resolution.without(PluginError("platform plugin 'chip': core_load failed.", row))
        assert resolution.engine.device == "cpu"
        assert any("platform plugin 'chip'" in warning for warning in resolution.warnings)
        for info in install.site.glob(f"chip_{hook[5]}-*"):
            info.rename(info.with_suffix(".gone"))


def serve(site, *words):
    command = [sys.executable, "-P", "-m", "core", "serve", *words, "--port", "0", "--max-model-len", "64"]
    environment = {**os.environ, "PYTHONPATH": f"{site}:{ROOT}"}
    return subprocess.Popen(
        [*command, "--kv-cache-memory-bytes", "4M"],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.slow
def test_a_plain_serve_starts_among_the_worst_and_a_named_one_ends_with_a_sentence(install, tiny_llama):
    for group in (
        "core.loaders",
        "core.quantization",
        "core.attention",
        "core.kernels",
        "core.policies",
        "core.models",
    ):
        ways = {"hangs": HANGS, "dies": "import os; os._exit(9)", "raises": "1 / 0"}
        install(f"worst-{group[5:]}", "1.0", {group: ways}, look=False)
    install("bad-load", "3.0", {"core.kernels": {"bad": f"{SUPPORT}@hookimpl\ndef core_load(context): {{}}['oops']"}})
    chip = "@hookimpl\ndef core_probe(): return Probe((Device('chip:0', '', 1 << 30),))\n"
    chip += "@hookimpl\ndef core_spec(): return PluginSpec(name='chip', priority=200)\n"
    install("chip-package", "2.0", {"core.platforms": {"chip": f"{chip}@hookimpl\ndef core_load(context): 1 / 0"}})
    plain, named = (
        serve(install.site, str(tiny_llama)),
        serve(install.site, str(tiny_llama), "--device", "cpu", "--kernels", "bad"),
    )
    stop = threading.Timer(120, lambda: (plain.kill(), named.kill()))
    stop.start()
    try:
        assert plain.stdout.readline().startswith("Serving "), plain.communicate()[1]
        plain.terminate()
        (warning,) = [line for line in plain.communicate()[1].splitlines() if "'chip'" in line]
        assert "platform plugin 'chip' (chip-package 2.0): core_load failed: ZeroDivisionError" in warning
        assert "--plugins no:chip leaves it out" in warning
        _, words = named.communicate()
        assert named.returncode == 1
        (sentence,) = [line for line in words.splitlines() if "'bad'" in line]
        assert sentence.startswith("core: kernels plugin 'bad' (bad-load 3.0): core_load failed: KeyError: 'oops'")
        assert "--plugins no:bad leaves it out" in sentence
        assert "Traceback" not in words and "died" not in words
    finally:
        stop.cancel()
        for process in (plain, named):
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            process.communicate()
