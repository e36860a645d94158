"""Kernels compiled ahead are found by launches, for a chip that is not in this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.api.errors import UserError
from core_kernels.triton.compiling import ahead
from tests.tiny_models import save_checkpoint

pytest.importorskip("triton")

from core_kernels.triton.compiling.catalog import function_of, kernel_rows

ROWS = """
import json
from core_kernels.triton.compiling import ahead
from core_kernels.triton.compiling.catalog import function_of, kernel_rows

row = next(row for row in kernel_rows() if row.function.endswith("elementwise:add"))
parts = [part for name in ("sm_90", "sm_89") for part in ahead.catalog_parts(ahead.target_of(name))]
first, last = (part for part in parts if part.name == row.name)
told = [ahead.compile_part(first)]
function_of(row).device_caches.clear()  # as another process finds it
told += [ahead.compile_part(first), ahead.compile_part(last)]
print(json.dumps([[one.name == row.name, one.chip, one.was_there, one.error] for one in told]))
"""

SPECIALIZED = """
import json

import torch

from core_kernels.triton.compiling import ahead
from core_kernels.triton.compiling.catalog import for_chip, kernel_rows
from core_kernels.triton.elementwise import add_rows
from core_kernels.triton.products.assign import route_rows
from core_kernels.triton.products.linear import linear_of
from core_kernels.triton.products.tiles import Tiles, shipped
from core_runtime.weights.formats import Dense

def step(chip):
    x = torch.zeros(3, 64, dtype=torch.bfloat16, device="meta")
    weight = Dense(torch.zeros(16384, 64, dtype=torch.bfloat16, device="meta"))
    add_rows(x, x)
    linear = linear_of(weight, "none", None, Tiles(shipped()), early=True)
    linear(x, x.new_empty(3, 16384))
    linear.gated(x, "silu", x.new_empty(3, 8192))
    for tokens in (3, 64, 8192):
        route_rows(torch.zeros(tokens, 8, dtype=torch.int64, device="meta"), 128)

rows = {row.name: row for row in kernel_rows()}
plain = "product: bf16 x dense in blocks of 64, up to 16 rows"
sorting = [f"{what} rows of up to 128 experts" for what in ("sort", "count", "sort counted")]
names = ("add bf16", f"{plain} (sm_90)", f"{plain}, gated (sm_90)", "few rows of experts", *sorting)
launched = ahead.launched_parts(ahead.target_of("sm_90"), step)
listed = [ahead.launch_of_row(for_chip(rows[name], "sm_90")) for name in names]
print(json.dumps([
    (dict(part.launch.arguments), dict(part.launch.constants)) == (dict(row.arguments), dict(row.constants))
    for part, row in zip(launched, listed, strict=True)
]))
"""

MODEL = """
import json
import sys
from unittest import mock

import torch
import triton
from triton.runtime.jit import JITFunction

from core_commands.cli.kernels_model import run_of
from core_runtime.weights.formats import Dense
from core_kernels.triton.compiling import ahead
from core_kernels.triton.compiling import launches
from core_kernels.triton.elementwise import scale
from core_kernels.triton.kernels import TritonKernels

chip = ahead.target_of("sm_90")
of_model = ahead.launched_parts(chip, run_of(sys.argv[1:]))

KERNELS = TritonKernels()

def step(device):
    x = torch.zeros(3, 96, dtype=torch.bfloat16, device=device)
    KERNELS.scale(x[:, 1:49], 2.0)  # begins at no multiple of 16 bytes
    KERNELS.add(x[:, 48:], x[:, :48])

hits = []
triton.knobs.compilation.listener = lambda **told: hits.append(told["cache_hit"])
run = JITFunction.run

def compile_only(self, *args, warmup, **kwargs):
    return run(self, *args, warmup=True, **kwargs)

parts = ahead.launched_parts(chip, lambda chip: step("meta"))
built = [ahead.compile_part(part) for part in parts]
triton.knobs.compilation.listener = lambda **told: hits.append(told["cache_hit"])
for part in parts:
    module, _, name = part.launch.function.partition(":")
    getattr(sys.modules[module], name).device_caches.clear()
with launches.standing_in(chip), mock.patch.object(JITFunction, "run", compile_only):
    step("cpu")
names = sorted({part.launch.function.partition(":")[2] for part in of_model})
print(json.dumps([names, [[one.was_there, one.error] for one in built], hits]))
"""


def _run(script: str, cache: Path, *words: str) -> list:
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ["TRITON_CACHE_DIR"] = str(cache)
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_what_was_compiled_is_there(tmp_path: Path) -> None:
    assert _run(ROWS, tmp_path) == [[True, "sm_90", False, ""], [True, "sm_90", True, ""], [True, "sm_89", False, ""]]
    assert list(tmp_path.rglob("*.cubin"))


def test_launches_are_specialized_as_the_catalog_says(tmp_path: Path) -> None:
    assert _run(SPECIALIZED, tmp_path) == [True] * 7


def test_what_a_model_launches_is_known_without_the_chip(tmp_path: Path, tiny_llama: Path) -> None:
    """Its kernels, none of which is compiled; and that a launch of tensors with memory finds what was compiled so."""
    names, built, found = _run(MODEL, tmp_path, str(tiny_llama), "--kv-cache-dtype", "fp8_e4m3")
    assert names == [
        *("activate", "attend", "conclude", "draw", "gather", "normalize", "peak", "plan", "product", "survey"),
        *("take", "tell", "turn_and_write"),
    ]
    assert built == [[False, ""], [False, ""]]
    assert found == [True, True]


LIBRARIES = Path(__file__).parent / "libraries"
EXPERTS = """
import json
import sys

from core_commands.cli.kernels_model import run_of
from core_kernels.triton.compiling import ahead

sys.path.append(sys.argv.pop())
parts = ahead.launched_parts(ahead.target_of("sm_90"), run_of(sys.argv[1:]))
print(json.dumps(sorted({part.launch.function.partition(":")[2] for part in parts})))
"""


@pytest.mark.slow
def test_experts_of_a_library_leave_the_other_launches_of_a_model_known(tmp_path: Path) -> None:
    model = save_checkpoint(tmp_path / "model", "mixtral", hidden_size=128, intermediate_size=64)
    words = str(model), "--quantization", "mxfp4", "--dtype", "bfloat16", str(LIBRARIES)
    names = set(_run(EXPERTS, tmp_path, *words))
    assert names >= {"activate", "combine", "product"} and "sort_rows" not in names


ADAPTED = """
import json
import sys

from core_commands.cli.kernels_model import run_of
from core_kernels.triton.compiling import ahead

suffix = '{"method": "suffix", "num_speculative_tokens": 4}'
parts = ahead.launched_parts(ahead.target_of("sm_90"), run_of([sys.argv[1], "--enable-lora", "--speculative-config", suffix]))
named = {part.launch.function.partition(":")[2] for part in parts}
tails = {dict(part.launch.constants).get("HAS_TAILS", False) for part in parts}
print(json.dumps([sorted(named & {"inner", "outer"}), sorted(tails)]))
"""


@pytest.mark.slow
def test_adapters_and_trees_of_drafts_are_known_too(tmp_path: Path, tiny_llama: Path) -> None:
    assert _run(ADAPTED, tmp_path, str(tiny_llama)) == [["inner", "outer"], [False, True]]


def test_every_row_of_the_catalog_names_a_kernel_and_its_arguments() -> None:
    for row in kernel_rows():
        assert sorted((*row.signature, *row.constants)) == sorted(function_of(row).arg_names), row.name


def test_chips_by_name() -> None:
    assert (ahead.target_of("sm_103").arch, ahead.target_of("90").name) == (103, "sm_90")
    assert (ahead.target_of("gfx942").backend, ahead.target_of("gfx942").warp) == ("hip", 64)
    assert ahead.target_of("sm_89").shared == ahead.target_of("sm_120").shared
    for name in ("sm_75", "gfx803", "hopper", ""):
        with pytest.raises(UserError, match="expected one such as sm_80"):
            ahead.target_of(name)
