"""Platforms are asked in helper processes: hangs, crashes and noise become sentences; all run at the same time."""

from __future__ import annotations

import time

from core.api.errors import PluginError
from core.plugin.hookspecs import Device, Probe
from core.plugin.probe import probe_all
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
    fine, absent, empty, crash, leave, noise, raises, hang, mute = probe_all(rows, time_limit=6.0)
    assert time.perf_counter() - begin < 15
    assert fine == Probe((Device("fine:0", "a device", 5),))
    assert absent.unavailable == "no driver"
    assert empty.unavailable == "no device was found"
    assert "signal 6" in crash.unavailable
    assert "exit code 7" in leave.unavailable
    assert noise.devices[0].name == "n"
    assert isinstance(raises, PluginError) and "OSError: bad library" in str(raises)
    assert "did not answer within 6 s" in hang.unavailable
    assert isinstance(mute, PluginError) and "no core_probe" in str(mute)


def test_the_listing_shows_what_the_probes_said(make_plugin):
    rows = [
        platform(make_plugin, "fine", "return Probe((Device('fine', '', 1),))"),
        platform(make_plugin, "absent", "return Probe(unavailable='no driver')"),
        platform(make_plugin, "raises", "raise OSError('bad library')"),
    ]
    fine, absent, raises = PluginRegistry(rows).listing()
    assert (fine.status, absent.status, raises.status) == ("available", "unavailable", "broken")
    assert absent.reason == "no driver"


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
