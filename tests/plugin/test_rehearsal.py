"""Plugins that nobody chose are tried in processes of their own: hangs, crashes and noise become sentences."""

import sys
import time

import pytest

from core.plugin import rehearsal
from core.plugin.hookspecs import Device
from core.plugin.listing import listing
from core.plugin.registry import PluginRegistry
from core.plugin.rehearsal import PROBE, Answer, Call, Part, collect, start
from core_config.selection import select_loader
from core_runtime.specs.checkpoint import FileFacts


def probe_all(rows, time_limit=10.0):
    return collect(start([Part(row, (PROBE,)) for row in rows], time_limit))


def platform(make_plugin, name, body, **spec):
    return make_plugin("platform", name, f"@hookimpl\ndef core_probe():\n    {body}\n", **spec)


def test_answers_crashes_hangs_and_noise(make_plugin):
    rows = [
        platform(make_plugin, "fine", "return Probe((Device('fine:0', 'a device', 5),))"),
        platform(make_plugin, "absent", "return Probe(unavailable='no driver')"),
        platform(make_plugin, "empty", "return Probe()"),
        platform(make_plugin, "crash", "import os; os.abort()"),
        platform(make_plugin, "leave", "import os; os._exit(7)"),
        platform(
            make_plugin,
            "noise",
            "print('hello'); import os; os.system('echo hello'); return Probe((Device('n', '', 1),))",
        ),
        platform(make_plugin, "raises", "raise OSError('bad library')"),
        platform(make_plugin, "hang", "import time; time.sleep(3600)"),
        make_plugin("platform", "mute"),
    ]
    fine, absent, empty, crash, leave, noise, raises, hang, mute = probe_all(rows, time_limit=3.0)
    assert fine == Answer((Device("fine:0", "a device", 5),))
    assert absent.unavailable == "no driver"
    assert empty.unavailable == "no device was found"
    assert "signal 6" in crash.unavailable
    assert "exit code 7" in leave.unavailable
    assert noise.devices[0].name == "n"
    assert "OSError: bad library" in raises.broken and "Traceback" in raises.details
    assert "no answer within 3 s" in hang.unavailable
    assert "no core_probe" in mute.broken


def test_the_listing_shows_what_the_probes_said(make_plugin):
    rows = [
        platform(make_plugin, "fine", "return Probe((Device('fine', '', 1),))"),
        platform(make_plugin, "absent", "return Probe(unavailable='no driver')"),
        platform(make_plugin, "raises", "raise OSError('bad library')"),
    ]
    fine, absent, raises = listing(PluginRegistry(rows))
    assert (fine.status, absent.status, raises.status) == ("available", "unavailable", "broken")
    assert absent.reason == "no driver"


HANGS = "import time; time.sleep(60)"
FILES = FileFacts("a-model", "/a-model", True, ("model.bin",))


@pytest.mark.parametrize(
    "hook, body, words",
    [
        ("core_spec()", HANGS, "no answer within 1 s"),
        ("core_claim(facts)", HANGS, "no answer within 1 s"),
        ("core_claim(facts)", "import os; os._exit(9)", "exit code 9"),
        ("core_claim(facts)", "import os; os.abort()", "signal 6"),
        ("core_claim(facts)", "raise OSError('no licence: ' + facts.ref)", "OSError: no licence: a-model"),
    ],
)
def test_a_stage_tries_strangers_with_its_own_question(make_plugin, monkeypatch, hook, body, words):
    """Whoever fails there is out with a sentence, and was never imported here; the next one is taken."""
    monkeypatch.setattr("core.plugin.rehearsal.start.__defaults__", (1.0,))
    bad = make_plugin("loader", "bad", f"@hookimpl\ndef {hook}:\n    {body}\n", distribution="strange")
    claim = "@hookimpl\ndef core_claim(facts): return 'it is mine'\n"
    good = make_plugin("loader", "good", claim, distribution="strange")
    choice = select_loader(PluginRegistry([bad, good]), None, FILES)
    assert choice.selection.chosen == ("good",)
    (lost,) = [one for one in choice.selection.candidates if one.name == "bad"]
    assert words in lost.reasons[0] and "loader plugin 'bad'" in lost.reasons[0]
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    assert bad.target.removeprefix("file:") not in files


def test_questions_travel(make_plugin):
    call = Call.of("core_claim", facts=FILES)
    assert call.unpacked() == {"facts": FILES}
    row = make_plugin("loader", "fine", "@hookimpl\ndef core_claim(facts): assert facts.names == ('model.bin',)\n")
    assert collect(start([Part(row, (call,))])) == [Answer()]


def alive(pid):
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def all_end(pids):
    """A process that was killed may take a moment on a busy machine."""
    until = time.monotonic() + 5
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(alive(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_is_left_of_a_probe_that_hangs_or_of_a_command_that_is_interrupted(make_plugin, tmp_path):
    pids = tmp_path / "pids"
    body = (
        f"import os, subprocess, time; child = subprocess.Popen(['sleep', '60']); "
        f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}} {{child.pid}} '); time.sleep(60)"
    )
    row = platform(make_plugin, "hang", body)

    def begun():
        until = time.monotonic() + 10
        while not pids.exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.1)
        return [int(pid) for pid in pids.read_text().split()]

    probing = start([Part(row, (PROBE,))], time_limit=2.0)
    hanging = begun()
    assert all(alive(pid) for pid in hanging)
    assert "no answer within 2 s" in collect(probing)[0].unavailable
    assert all_end(hanging)

    pids.unlink()
    probing = start([Part(row, (PROBE,))], time_limit=60.0)
    hanging = begun()
    probing.process.terminate()
    assert "process ended with exit code 1" in collect(probing)[0].unavailable
    assert all_end(hanging)


def test_a_helper_that_cannot_start_is_a_sentence(make_plugin, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    rows = [platform(make_plugin, name, "return Probe((Device(name, '', 1),))") for name in ("one", "two")]
    for answer in probe_all(rows):
        assert answer.unavailable == "the helper process ended with exit code 1: without a word"
    assert probe_all([]) == []


def test_many_platforms_are_asked_by_one_helper(make_plugin, monkeypatch):
    rows = [platform(make_plugin, f"p{n}", f"return Probe((Device('p{n}', '', 1),))") for n in range(60)]
    started = []
    inner = rehearsal.subprocess.Popen
    monkeypatch.setattr(rehearsal.subprocess, "Popen", lambda *a, **k: started.append(a) or inner(*a, **k))
    begin = time.perf_counter()
    found = probe_all(rows)
    print(f"60 platforms: {(time.perf_counter() - begin) * 1000:.0f} ms")
    assert [answer.devices[0].name for answer in found] == [f"p{n}" for n in range(60)]
    assert len(started) == 1


def test_our_own_platforms_are_probed():
    registry = PluginRegistry()
    rows = [row for row in registry.rows("platform") if row.distribution == "core-engine-platforms"]
    cpu, *gpus = probe_all(rows)
    assert cpu.devices[0].name == "cpu" and cpu.devices[0].memory_bytes > 1 << 20
    assert len(gpus) == 3 and all(gpu.devices or gpu.unavailable for gpu in gpus)
