"""Operations that torch compiles in the background: used from a later step on, and only with the reference's bits."""

import logging
import shutil
import threading
import time

import pytest
import torch
from torch._dynamo.utils import counters

from core.plugin.registry import PluginRegistry
from core_config.selection import select_kernels
from core_kernels.inductor.compiler import Compiler
from core_kernels.inductor.kernels import CompiledKernels
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.reference import ReferenceKernels


def counting(calls, change=None):
    """A compiler whose operations count their calls, and may change what they leave behind."""

    def compile(operation, form, device):
        def run(*arguments):
            calls.append(operation.__name__)
            operation(*arguments)
            if operation.__name__ == change:
                arguments[-1 if change == "gated" else 0].add_(1e-3)

        return run

    return compile


class AtOnce(Compiler):
    """Compiles where it is asked."""

    def ask(self, form):
        self.prepare(form)


def norm(kernels, rows: int = 3) -> torch.Tensor:
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(0))
    out = torch.empty_like(x)
    kernels.rms_norm(x, torch.ones(64), 1e-6, out)
    return out


def gate(kernels) -> torch.Tensor:
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(0))
    out = torch.empty(2, 128)
    kernels.gated(x, "silu", out)
    return out


def turned(kernels, rows: int = 3) -> torch.Tensor:
    """Queries and keys that lie in one memory, as models have them."""
    both = torch.randn(rows, 6, 32, generator=torch.Generator().manual_seed(0))
    angles = torch.randn(200, 16, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(rows) * 7
    kernels.rotary(both[:, :4], both[:, 4:], angles.cos(), angles.sin(), positions)
    return both


def test_it_is_used_from_the_next_step_on():
    calls = []
    kernels = KernelSet([CompiledKernels(AtOnce("cpu", counting(calls)))])
    expected = norm(ReferenceKernels())
    assert norm(kernels).equal(expected)
    calls.clear()
    assert norm(kernels).equal(expected) and calls == []
    (begin_step,) = kernels.step_hooks
    begin_step()
    assert norm(kernels).equal(expected) and calls == ["rms_norm"]
    assert norm(kernels, rows=9).equal(norm(ReferenceKernels(), rows=9)) and len(calls) == 2


def test_calls_of_another_form_are_compiled_for_themselves():
    asked = []

    class Noting(Compiler):
        def ask(self, form):
            asked.append(form)

    provider = CompiledKernels(Noting("cpu", counting([])))
    for rows in (3, 1, 3):
        norm(provider, rows)
    provider.rms_norm(torch.ones(3, 64), torch.ones(64), 1e-5, torch.empty(3, 64))
    provider.rms_norm(torch.ones(3, 64).bfloat16(), torch.ones(64), 1e-5, torch.empty(3, 64).bfloat16())
    provider.rms_norm(torch.ones(3, 80)[:, :64], torch.ones(64), 1e-5, torch.empty(3, 64))
    assert len(asked) == 4 and {form.operation for form in asked} == {"rms_norm"}


def test_other_bits_are_not_used():
    calls = []
    provider = CompiledKernels(AtOnce("cpu", counting(calls, change="gated")))
    gate(provider), norm(provider), turned(provider)
    provider.begin_step()
    calls.clear()
    for used in (gate, norm, turned):
        assert used(provider).equal(used(ReferenceKernels()))
    assert calls == ["rms_norm", "rotary"]


def test_a_compiler_that_fails_changes_nothing_and_is_told_once(caplog):
    def compile(operation, form, device):
        raise RuntimeError("no C++ compiler was found\nmore")

    provider = CompiledKernels(AtOnce("cpu", compile))
    with caplog.at_level(logging.WARNING):
        for rows in (3, 4):
            norm(provider, rows)
            provider.rms_norm(torch.ones(rows, 32), torch.ones(32), 1e-6, torch.empty(rows, 32))
    provider.begin_step()
    assert norm(provider).equal(norm(ReferenceKernels()))
    (told,) = caplog.messages
    assert told == "torch cannot compile rms_norm (no C++ compiler was found); it is computed as before."


def test_nobody_waits_for_the_compiler():
    """It works in a thread of its own, which ends with the process."""
    may_end = threading.Event()

    def compile(operation, form, device):
        assert threading.current_thread().daemon
        assert may_end.wait(10)
        return operation

    compiler = Compiler("cpu", compile)
    provider = CompiledKernels(compiler)
    assert norm(provider).equal(norm(ReferenceKernels())) and not compiler.ready
    may_end.set()
    deadline = time.monotonic() + 10
    while not compiler.ready and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(compiler.ready) == 1


def test_only_those_who_name_it_get_it():
    registry = PluginRegistry()
    auto = select_kernels(registry, "cpu")
    assert "inductor" not in auto.selection.chosen
    (loser,) = [one for one in auto.selection.candidates if one.name == "inductor"]
    assert "--kernels NAME,auto" in loser.reasons[0]
    named = select_kernels(registry, "cpu", ["inductor", "auto"])
    assert named.selection.chosen[0] == "inductor"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_torch_compiles_for_a_processor(tmp_path, monkeypatch):
    """Some operations at least have the reference's bits; what the thread of steps then calls compiles nothing any more."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    compiler = AtOnce("cpu")
    provider = CompiledKernels(compiler)
    operations = (norm, gate, turned)
    for used in operations:
        used(provider)
    compiled = {form.operation for form, _ in compiler.ready}
    assert {"gated", "rotary"} <= compiled
    assert any(tmp_path.rglob("*.so"))
    provider.begin_step()
    counters.clear()
    with torch.inference_mode():
        for used in operations:
            assert used(provider).equal(used(ReferenceKernels()))
        for rows in (1, 2, 17):
            assert turned(provider, rows).equal(turned(ReferenceKernels(), rows))
    assert not counters["stats"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_what_torch_makes_is_written_where_that_is_said(tmp_path, monkeypatch):
    """Also where its cache has the code already."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    for place in ("first", "second"):
        gate(CompiledKernels(AtOnce("cpu", debug_dir=str(tmp_path / place))))
        assert any(path.read_text() for path in (tmp_path / place).rglob("output_code.py"))
