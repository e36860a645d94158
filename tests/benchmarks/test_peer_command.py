"""The command line of the peer comparison."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peer.command import ORDER, parse

ROOT = Path(__file__).resolve().parents[2]


def test_lists_keep_the_order_of_the_run():
    options = parse(["--scenarios", "s5,s1", "--peers", "llama.cpp,vllm"])
    assert options.scenarios == ["s1", "s5"]
    assert options.peers == ["vllm", "llama.cpp"]
    assert parse([]).scenarios == list(ORDER)


def test_a_full_run_writes_the_report_and_a_quick_one_does_not():
    full, quick = parse([]), parse(["--quick"])
    assert full.out == ROOT / "docs" / "performance.md" and full.json == ROOT / "docs" / "performance.json"
    assert quick.out is None and quick.json.parent == quick.env_dir
    assert quick.scenarios == ["s1", "s2", "s3"] and quick.repeats < full.repeats


def test_an_unknown_peer_is_refused_with_the_choices(capsys):
    with pytest.raises(SystemExit):
        parse(["--peers", "sglang"])
    assert "expected some of vllm, llama.cpp, ik_llama.cpp, transformers, openvino" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("start", [["benchmarks/peers.py"], ["-m", "benchmarks.peers"]])
def test_it_runs_as_a_file_and_as_a_module(start):
    done = subprocess.run([sys.executable, *start, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "--scenarios" in done.stdout
