"""Platforms are asked in helper processes: hangs, crashes and noise become sentences; all run at the same time."""

from __future__ import annotations

import sys
import time

import pytest

from core.api.errors import PluginError
from core.plugin import probe
from core.plugin.hookspecs import Device, Probe
from core.plugin.listing import listing
from core.plugin.probe import collect, probe_all, start
from core.plugin.registry import PluginRegistry


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
        platform(make_plugin, "hang", "import time; time.sleep(60)"),
        make_plugin("platform", "mute"),
    ]
    begin = time.perf_counter()
    fine, absent, empty, crash, leave, noise, raises, hang, mute = probe_all(rows, time_limit=3.0)
    assert time.perf_counter() - begin < 15
    assert fine == Probe((Device("fine:0", "a device", 5),))
    assert absent.unavailable == "no driver"
    assert empty.unavailable == "no device was found"
    assert "signal 6" in crash.unavailable
    assert "exit code 7" in leave.unavailable
    assert noise.devices[0].name == "n"
    assert isinstance(raises, PluginError) and "OSError: bad library" in str(raises)
    assert "did not answer within 3 s" in hang.unavailable
    assert isinstance(mute, PluginError) and "no core_probe" in str(mute)


def test_the_listing_shows_what_the_probes_said(make_plugin):
    rows = [
        platform(make_plugin, "fine", "return Probe((Device('fine', '', 1),))"),
        platform(make_plugin, "absent", "return Probe(unavailable='no driver')"),
        platform(make_plugin, "raises", "raise OSError('bad library')"),
    ]
    fine, absent, raises = listing(PluginRegistry(rows))
    assert (fine.status, absent.status, raises.status) == ("available", "unavailable", "broken")
    assert absent.reason == "no driver"


def alive(pid):
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


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

    probing = start([row], time_limit=2.0)
    hanging = begun()
    assert all(alive(pid) for pid in hanging)
    assert "did not answer within 2 s" in collect(probing)[0].unavailable
    assert not any(alive(pid) for pid in hanging)

    pids.unlink()
    probing = start([row], time_limit=60.0)
    hanging = begun()
    probing.process.terminate()
    assert "process ended with exit code 1" in collect(probing)[0].unavailable
    assert not any(alive(pid) for pid in hanging)


def test_a_helper_that_cannot_start_is_a_sentence(make_plugin, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    rows = [platform(make_plugin, name, "return Probe((Device(name, '', 1),))") for name in ("one", "two")]
    for answer in probe_all(rows):
        assert answer.unavailable == "the probes' process ended with exit code 1: without a word"
    assert probe_all([]) == []


def test_many_platforms_are_asked_by_one_helper(make_plugin, monkeypatch):
    rows = [platform(make_plugin, f"p{n}", f"return Probe((Device('p{n}', '', 1),))") for n in range(60)]
    started = []
    inner = probe.subprocess.Popen
    monkeypatch.setattr(probe.subprocess, "Popen", lambda *a, **k: started.append(a) or inner(*a, **k))
    begin = time.perf_counter()
    found = probe_all(rows)
    print(f"60 platforms: {(time.perf_counter() - begin) * 1000:.0f} ms")
    assert [answer.devices[0].name for answer in found] == [f"p{n}" for n in range(60)]
    assert len(started) == 1


def test_our_own_platforms_are_probed_quickly():
    registry = PluginRegistry()
    rows = [row for row in registry.rows("platform") if row.distribution == "core-engine"]
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        cpu, cuda = probe_all(rows)
        seconds.append(time.perf_counter() - begin)
    assert cpu.devices[0].name == "cpu" and cpu.devices[0].memory_bytes > 1 << 20
    assert cuda.devices or cuda.unavailable
    print(f"probe of two platforms: {min(seconds) * 1000:.0f} ms")
    assert min(seconds) < 1.0
