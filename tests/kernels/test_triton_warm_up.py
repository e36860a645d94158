"""The warm-up of Triton's kernels: compiled before an engine is ready, in another process, and no more afterwards."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_models import save_checkpoint

pytest.importorskip("triton")

ON_A_CHIP = """
import json
import logging
import sys
from unittest import mock

import torch
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from core_kernels.triton.compiling.ahead import target_of
from core_kernels.triton.compiling.launches import StandIn

said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("core_kernels").addHandler(handler)
logging.getLogger("core_kernels").setLevel("INFO")
driver.set_active(StandIn(target_of("sm_90")))
CompiledKernel._init_handles = lambda self: None  # there is no device to load it onto
"""

START = """
from core.api.errors import UserError
from core_kernels.triton.compiling.ahead import launch_of_row
from core_kernels.triton.compiling.catalog import kernel_rows
from core_kernels.triton.compiling.messages import encoded, launches_of
from core_kernels.triton.kernels import TritonKernels
from tests.kernels import warm_steps

def started(name, config, **options):
    kernels = TritonKernels(**options)
    warm_up = kernels.warm_up(f"tests.kernels.warm_steps:{name}", config)
    process = None if warm_up is None else warm_up._process
    try:
        if warm_up is not None:
            warm_up.finish()
    except UserError as error:
        return kernels, process is not None, str(error)
    finally:
        if warm_up is not None:
            warm_up.stop()
    return kernels, process is not None, ""
"""

TWICE = """
_, compiled, _ = started("one_kernel", "a")
warm_steps.scale_rows.__globals__["scale"].device_caches.clear()  # as another process finds it
kernels, compiled_again, _ = started("one_kernel", "a")
run = JITFunction.run

def compile_only(self, *args, warmup, **kwargs):
    with mock.patch.object(CompiledKernel, "run", lambda *_: None), \\
            mock.patch.object(CompiledKernel, "launch_metadata", lambda *_: None), \\
            mock.patch.object(CompiledKernel, "function", None, create=True):
        return run(self, *args, warmup=warmup, **kwargs)

with mock.patch.object(JITFunction, "run", compile_only):
    x = torch.zeros(5, 64, dtype=torch.bfloat16)
    warm_steps.scale_rows(x, 2.0)
    late = [kernels.late]
    warm_steps.another_kernel(x)
    late.append(kernels.late)
_, off, _ = started("one_kernel", "b", warms_up=False)
listed = [launch_of_row(row) for row in kernel_rows()]
kept = launches_of(json.loads(json.dumps([encoded(launch) for launch in listed]))) == listed
print(json.dumps([compiled, compiled_again, off, kept, late, said]))
"""

FAILS = """
_, _, refusal = started("one_that_fails", "a")
started("unknowable", "b")
print(json.dumps([refusal, said]))
"""


def run(cache: Path, *words: str) -> Any:
    """What a Python prints, as JSON, that does not interpret kernels."""
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_kernels_are_compiled_once_and_none_behind_the_start(tmp_path: Path) -> None:
    compiled, again, off, kept, late, said = run(tmp_path, "-c", ON_A_CHIP + START + TWICE)
    assert (compiled, again, off) == (True, False, False), "whether a process compiles"
    assert kept, "the launches of the whole catalog"
    assert late == [0, 1]
    assert "Compiling kernels for sm_90: 1 of 1." in said
    assert sum("1 kernels are loaded for sm_90" in line for line in said) == 2
    assert "A step waited for the kernel 'add', which the warm-up did not know." in said


@pytest.mark.slow
def test_what_cannot_be_compiled_is_refused_and_what_cannot_be_known_is_said(tmp_path: Path) -> None:
    refusal, said = run(tmp_path, "-c", ON_A_CHIP + START + FAILS)
    assert refusal.startswith("1 of 2 kernels cannot be compiled for sm_90, such as wrong")
    assert "--plugins no:kernels.triton" in refusal and "--kernels-config.triton.warm-up false" in refusal
    assert "Kernels are compiled when they are first launched: what it launches depends on numbers" in said


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_an_engine_launches_only_what_was_compiled(tmp_path: Path, family: str) -> None:
    """Decoding, prompts in chunks, drafts, those of another model too, filters, masks and log-probabilities."""
    model = save_checkpoint(tmp_path / "model", family)
    draft = save_checkpoint(tmp_path / "draft", hidden_size=32, intermediate_size=112, num_hidden_layers=2)
    found = run(tmp_path, "-m", "tests.kernels.recorded_engine", str(model), str(draft))
    assert {name: unknown for name, (unknown, _) in found.items() if unknown} == {}
    assert all(count >= 15 for _, count in found.values())
