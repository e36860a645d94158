"""`core kernels build`: what is compiled, what is said of it, and mistakes."""

import sys
import types

import pytest

from core.commands.main import main
from core.plugin.hookspecs import Device, Probe
from core.plugin.registry import PluginRegistry
from core_runtime.contracts.ahead import CompiledAhead
from core_runtime.executor import instance
from tests.tiny_models import save_checkpoint


@pytest.fixture
def asked(monkeypatch):
    """What a provider is asked to build; it fails at one kernel."""
    calls = []

    def build(chips, jobs, say, run=None):
        calls.append((list(chips), jobs))
        if run is not None:
            run(chips[0])
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
    from core_kernels.triton import manifest

    spec = manifest.core_spec()
    monkeypatch.setitem(spec.capabilities, "ahead", "built_ahead:build")
    candidates = PluginRegistry.candidates

    def found(self, kind, rows=None):
        if kind == "kernels" and rows is None:
            return [(spec, types.SimpleNamespace(spec=spec))]
        return candidates(self, kind, rows)

    monkeypatch.setattr(PluginRegistry, "candidates", found)
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


def test_what_was_measured_is_printed(monkeypatch, capsys, tiny_llama):
    module = types.ModuleType("measured")

    def tune(chip, run, say):
        say("one line")
        return f"# a table for {chip}\n"

    module.tune = tune
    monkeypatch.setitem(sys.modules, "measured", module)
    from core_kernels.triton import manifest

    spec = manifest.core_spec()
    monkeypatch.setitem(spec.capabilities, "tune", "measured:tune")
    found = [(spec, types.SimpleNamespace(spec=spec))]
    monkeypatch.setattr(PluginRegistry, "candidates", lambda self, kind: found)
    assert main(["kernels", "tune", str(tiny_llama)]) == 2
    assert "no GPU was found here" in capsys.readouterr().err
    row = next(row for row in PluginRegistry().rows("platform") if row.name == "cuda")
    device = Device("cuda:0", "a GPU", 1 << 30, profile="sm_90")
    monkeypatch.setattr(PluginRegistry, "probe", lambda self: {row: Probe((device,))})
    assert main(["kernels", "tune", str(tiny_llama)]) == 0
    told = capsys.readouterr()
    assert told.out == "# a table for sm_90\n"
    assert "triton: measuring on sm_90" in told.err and "one line" in told.err


def test_a_model_is_run_as_it_would_be_on_the_chip(asked, monkeypatch, tiny_llama):
    from core_runtime.executor import dry_run

    seen = []
    monkeypatch.setattr(dry_run, "dry_run", seen.append)
    main(["kernels", "build", str(tiny_llama), "--sm", "gfx942", "--max-model-len", "96"])
    config = seen[0]
    assert (config.device, config.plugins.platform, config.model.max_model_len) == ("rocm:0", "rocm", 96)
    assert config.plugins.kernels[0] == "triton"
    assert set(config.plugins.attention.values()) == {"triton"}


def test_a_dry_run_computes_as_many_rows_of_logits_as_the_chip_will(monkeypatch, tmp_path):
    """A GPU has room for the rows of all its sequences, and kernels are compiled for these numbers of rows."""
    from core_commands.cli.kernels_model import configured
    from core_runtime.executor import dry_run

    class Built(Exception):
        pass

    def build(*arguments, **options):
        raise Built(instance.build(*arguments, **options).model.max_logits)

    monkeypatch.setattr(dry_run, "build", build)
    path = save_checkpoint(tmp_path, vocab_size=49152, num_hidden_layers=1)
    config = configured([str(path), "--max-num-seqs", "256"], "sm_90")
    with pytest.raises(Built, match="256"):
        dry_run.dry_run(config)


@pytest.mark.parametrize(
    "words, there",
    [
        (["kernels", "biuld"], "known: build, list, tune. Did you mean 'build'?"),
        (["kernels", "tune"], "expected a model"),
        (["kernels", "build", "--jbos", "2"], "Did you mean '--jobs'?"),
        (["kernels", "build", "--jobs", "0"], "--jobs 0"),
        (["kernels", "build", "no-such-model", "--sm", "sm_90"], "no-such-model"),
        (["kernels", "build", "no-such-model", "--sm", "sm_90", "--device", "cpu"], "--sm says which device is meant"),
        (["kernels", "build", "--sm", "sm_70"], "kernels are compiled for sm_80 and newer"),
    ],
)
def test_mistakes(words, there, capsys, monkeypatch):
    import triton

    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    assert main(words) == 2
    assert there in capsys.readouterr().err
