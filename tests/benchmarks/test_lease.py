"""The measurements of a GPU: every stage rehearsed on the processor, and what becomes of one that fails or hangs."""

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.lease import __main__ as lease
from benchmarks.lease import shapes
from benchmarks.lease.rows import Row, table
from tests.layout import ROOT
from tests.on_device import OnDevice

BROKEN = """
import os
import time
from benchmarks.lease.place import Measurement
from benchmarks.lease.rows import Row

def fine(place):
    yield Row("", "counted", 3.0, "things")

def wrong(place):
    yield Row("", "first", 1.0)
    raise ValueError("two\\nlines")

def hangs(place):
    time.sleep(600)
    yield

def dies(place):
    os._exit(5)
    yield

MEASUREMENTS = tuple(Measurement(f.__name__, 1.0, f) for f in (wrong, hangs, dies, fine))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", lease.STAGES)
def test_every_stage_is_rehearsed_on_the_processor(tmp_path: Path, stage: str) -> None:
    environ = os.environ | {"OUT": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-m", "benchmarks.lease", stage, "--device", "cpu", "--tiny", "--seconds", "540"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    rows = [Row(**json.loads(line)) for line in (tmp_path / f"stage-{stage}.jsonl").read_text().splitlines()]
    assert [row for row in rows if row.failed] == [], done.stderr
    assert done.returncode == 0 and done.stdout.endswith(table(rows) + "\n")
    assert {row.name for row in rows} == set(lease.names_of(argparse.Namespace(stage=stage, device="cpu")))


@pytest.mark.parametrize("stage", lease.STAGES)
def test_the_limits_of_a_stage_fit_nine_minutes(stage: str) -> None:
    module = importlib.import_module(f"benchmarks.lease.stage{stage}")
    assert sum(one.limit for one in module.MEASUREMENTS) <= 540


@pytest.mark.slow
def test_a_measurement_that_fails_hangs_or_dies_costs_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types\nmodule = types.ModuleType('benchmarks.lease.stage9')\n"
        f"sys.modules['benchmarks.lease.stage9'] = module\n__import__('builtins').exec({BROKEN!r}, module.__dict__)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT), *sys.path]))
    given = argparse.Namespace(stage="9", device="cpu", tiny=True, only=["wrong", "hangs", "dies", "fine"], seconds=120)
    given.limit = 60
    stage = lease.Stage(given, tmp_path)
    stage.run()
    assert [(row.name, row.what, row.value) for row in stage.rows] == [
        ("wrong", "first", 1.0),
        ("wrong", "ValueError: two", None),
        ("hangs", "not done after 1 s", None),
        ("dies", "its process ended with 5", None),
        ("fine", "counted", 3.0),
    ]


def test_the_table_shows_shares_goals_and_failures() -> None:
    rows = [
        Row("engine", "decode", 243.3, "tokens/s", 0.861, "copy rate", "≥ 85%"),
        Row("qwen", "out of memory"),
        Row("ncu", "absent", is_fine=True),
    ]
    assert table(rows).splitlines()[2:] == [
        "| engine | decode | 243.3 tokens/s | 86% of copy rate | ≥ 85% |",
        "| qwen | **out of memory** |  |  |  |",
        "| ncu | absent |  |  |  |",
    ]


@pytest.mark.parametrize(
    "name, least, most",
    [("Llama-3-8B", 14.9e9, 15.1e9), ("Qwen3-30B-A3B", 6.0e9, 6.2e9), ("gpt-oss-20b", 6.5e9, 7.5e9)],
)
def test_bytes_of_a_token(name: str, least: float, most: float) -> None:
    assert least < shapes.token_bytes(name) < most


def test_tensors_of_tests_are_made_on_the_device_and_memory_without_content_is_poisoned() -> None:
    with OnDevice("meta"):
        made = [
            torch.randn(3, generator=torch.Generator().manual_seed(1)),
            torch.tensor([1, 2]),
            torch.arange(4),
        ]
        assert {one.device.type for one in made} == {"meta"}
    with OnDevice("cpu"):
        memory = torch.empty(3)
        assert memory.isnan().all() and memory.new_empty(2).isnan().all() and torch.empty_like(memory).isnan().all()
        assert torch.equal(torch.empty(2).normal_(generator=torch.Generator().manual_seed(1)),
                           torch.randn(2, generator=torch.Generator().manual_seed(1)))  # fmt: skip
