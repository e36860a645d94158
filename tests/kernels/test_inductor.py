"""Operations that torch compiles in the background: used from a later step on, and only with the reference's bits."""

from __future__ import annotations

import logging
import shutil

import pytest
import torch

from core.layers.kernels import KernelSet
from core.layers.reference import ReferenceKernels
from core.plugin.registry import PluginRegistry
from core.plugin.selection import select_kernels
from core_plugins.kernels.inductor.kernels import CompiledKernels, compiled


def counting(calls, change=None):
    """A compiler whose operations count their calls, and may change what they leave behind."""

    def compile(operation):
        def run(*arguments):
            calls.append(operation.__name__)
            operation(*arguments)
            if operation.__name__ == change:
                arguments[-1 if change == "gated" else 0].add_(1e-3)

        return run

    return compile


def norm(kernels) -> torch.Tensor:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    out = torch.empty_like(x)
    kernels.rms_norm(x, torch.ones(64), 1e-6, out)
    return out


def test_it_is_used_from_the_next_step_on():
    calls = []
    provider = CompiledKernels("cpu", counting(calls))
    kernels = KernelSet([provider])
    provider.prepare()
    calls.clear()
    expected = norm(ReferenceKernels())
    assert norm(kernels).equal(expected) and calls == []
    (begin_step,) = kernels.step_hooks
    begin_step()
    assert norm(kernels).equal(expected) and calls == ["rms_norm"]


def test_other_bits_are_not_used():
    calls = []
    provider = CompiledKernels("cpu", counting(calls, change="gated"))
    provider.prepare()
    provider.begin_step()
    calls.clear()
    norm(provider)
    x = torch.randn(2, 8)
    out = torch.empty(2, 4)
    provider.gated(x, "silu", out)
    assert calls == ["rms_norm"]


def test_a_compiler_that_fails_changes_nothing(caplog):
    def compile(operation):
        raise RuntimeError("no C++ compiler was found\nmore")

    provider = CompiledKernels("cpu", compile)
    with caplog.at_level(logging.WARNING):
        provider.prepare()
    provider.begin_step()
    assert norm(provider).equal(norm(ReferenceKernels()))
    assert "torch cannot compile rms_norm (no C++ compiler was found); it is computed as before." in caplog.text


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
def test_torch_compiles_for_a_processor():
    provider = CompiledKernels("cpu", compiled)
    provider.prepare()
    provider.begin_step()
    assert norm(provider).equal(norm(ReferenceKernels()))
