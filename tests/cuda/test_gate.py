"""Some rows of the gate, and that the gate sees what it is for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _gate(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess:
    """In a process of its own: this one interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    what = ["-c", code] if code else ["-m", "tests.cuda.gate", *arguments]
    command = [sys.executable, *what]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.gpu_interpreter
def test_rows_pass_on_a_hopper():
    said = _gate("--rows", "rotary of bf16, up to 64", "--chips", "sm_90,gfx942", "--jobs", "1")
    assert said.returncode == 0, said.stdout + said.stderr
    assert "2 compilations, 0 failed" in said.stdout


BAD = """
from dataclasses import replace
from tests.cuda.judge import judged
from core_kernels.triton.compiling.catalog import kernel_rows
from core_kernels.triton.compiling.chips import CHIPS
rows = {row.name: row for row in kernel_rows()}
hopper = next(chip for chip in CHIPS if chip.name == "sm_90")
simple = rows["rotary of bf16, up to 64 pairs"]
print(judged(replace(simple, uses_mma=True), hopper).problems)
print(judged(replace(rows["logprobs"], no_fma=True), hopper).problems)
print(judged(replace(simple, signature={}), hopper).problems)
print(judged(replace(simple, reads=(1 << 20,)), hopper).problems)
piped = rows["product: bf16 x dense in blocks of 64, up to 16 rows (sm_90)"]
print(judged(replace(piped, reads=(1 << 16,)), hopper).problems)
print(judged(replace(simple, reads=(128,), num_stages=3), hopper).problems)
print(judged(replace(simple, options={"launch_pdl": True}), hopper).problems)
print(judged(rows["take rows bf16"], hopper).problems)
print(judged(replace(simple, resident=1000), hopper).problems)
latents = rows["attention: DeepSeek V3 (sm_90)"]
print(judged(replace(latents, num_warps=8, whole_rows=True), hopper).problems)
print(judged(replace(simple, holds=("no_such_instruction",)), hopper).problems)
packed = rows["product: bf16 x uint4 in blocks of 64, up to 16 rows (sm_90)"]
print(judged(replace(packed, most_each=1.0), hopper).problems)
"""


@pytest.mark.gpu_interpreter
def test_the_gate_sees_what_is_wrong():
    said = _gate(code=BAD)
    lines = said.stdout.splitlines()
    assert "matrix units" in lines[0], said.stderr
    assert "fused" in lines[1]
    assert "arguments" in lines[2]
    assert "bytes a thread in accesses of 16 bytes" in lines[3]
    assert "the pipeline of 4 stages needs" in lines[4]
    assert "copies nothing ahead" in lines[5]
    assert "griddepcontrol.wait" in lines[6]
    assert lines[7] == "()"
    assert "programs fit a multiprocessor, not 1000" in lines[8]
    assert "divides rows among 2 warps" in lines[9]
    assert "holds nothing like no_such_instruction" in lines[10]
    assert "instructions a number; at most 1.0 are expected" in lines[11]


def test_the_manifest_needs_neither_torch_nor_triton():
    code = (
        "import sys; from core_kernels.triton import manifest; "
        "from core.api.specs import KernelQuery; "
        "print(manifest.core_supports(KernelQuery('linear', 'cpu'))[-1].code, "
        "'torch' in sys.modules, 'triton' in sys.modules)"
    )
    assert _gate(code=code).stdout.split() == ["device", "False", "False"]
