"""`core kernels build`: what is compiled, what is said of it, and mistakes."""

from __future__ import annotations

import sys
import types

import pytest

from core.cli.main import main
from core.plugin.contracts.ahead import CompiledAhead
from core.plugin.hookspecs import Device, Probe
from core.plugin.registry import PluginRegistry


@pytest.fixture
def asked(monkeypatch):
    """What a provider is asked to build; it fails at one kernel."""
    calls = []

    def build(chips, jobs, say):
        calls.append((list(chips), jobs))
        rows = [
            CompiledAhead("norm", chips[0], 0.2, False),
            CompiledAhead("race", chips[0], 0.0, True),
            CompiledAhead("product", chips[0], 0.1, False, "PTXASError: too many registers"),
        ]
        for number, row in enumerate(rows, start=1):
            say(row, number, len(rows))
        return rows

    module = types.ModuleType("built_ahead")
    module.build = build
    monkeypatch.setitem(sys.modules, "built_ahead", module)
    from core_plugins.kernels.triton import manifest

    spec = manifest.core_spec()
    monkeypatch.setitem(spec.capabilities, "ahead", "built_ahead:build")
    monkeypatch.setattr(PluginRegistry, "candidates", lambda self, kind: [(spec, types.SimpleNamespace(spec=spec))])
    return calls


def test_every_kernel_is_named_and_counted(asked, capsys):
    assert main(["kernels", "build", "--sm", "90,gfx942,sm_90", "--jobs", "3"]) == 1
    assert asked == [(["sm_90", "gfx942"], 3)]
    told = capsys.readouterr()
    assert "[1/3] sm_90 norm: 0.2 s" in told.out and "[2/3] sm_90 race: was there" in told.out
    assert told.err == "[3/3] sm_90 product: PTXASError: too many registers\n"
    assert "1 kernels compiled, 1 were there, 1 failed" in told.out


def test_the_chips_of_this_machine(asked, monkeypatch, capsys):
    devices = tuple(Device(f"cuda:{index}", "a GPU", 1 << 30, profile="sm_90") for index in range(2))
    row = next(row for row in PluginRegistry().rows("platform") if row.name == "cuda")
    monkeypatch.setattr(PluginRegistry, "probe", lambda self: {row: Probe(devices)})
    main(["kernels", "build"])
    assert asked[0][0] == ["sm_90"]
    monkeypatch.setattr(PluginRegistry, "probe", lambda self: {row: Probe(unavailable="no driver")})
    assert main(["kernels", "build"]) == 2
    assert "no GPU was found here (cuda: no driver); name the chips, such as --sm sm_90" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, there",
    [
        (["kernels"], "expected `core kernels build"),
        (["kernels", "biuld"], "Did you mean 'build'?"),
        (["kernels", "build", "--jbos", "2"], "Did you mean '--jobs'?"),
        (["kernels", "build", "--jobs", "0"], "--jobs 0"),
        (["kernels", "build", "90"], "'90': unexpected"),
        (["kernels", "build", "--sm", "sm_70"], "kernels are compiled for sm_80 and newer"),
    ],
)
def test_mistakes(words, there, capsys, monkeypatch):
    import triton

    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    assert main(words) == 2
    assert there in capsys.readouterr().err
