"""`core bench latency`, `throughput` and `startup` with a tiny model."""

import json
import statistics

import pytest

from core.commands.main import main


@pytest.fixture
def bench(tiny_llama, capsys):
    def call(command, *words):
        code = main(["bench", command, str(tiny_llama), "--max-num-seqs", "4", *words])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    return call


def test_latency(bench, tmp_path):
    words = [
        "--batch-size",
        "2",
        "--input-len",
        "8",
        "--output-len",
        "4",
        "--num-iters",
        "5",
        "--num-iters-warmup",
        "1",
    ]
    out = bench("latency", *words, "--output-json", str(tmp_path / "found.json"))
    result = json.loads((tmp_path / "found.json").read_text())
    assert len(result["latencies"]) == 5
    assert result["avg_latency"] == pytest.approx(statistics.fmean(result["latencies"]))
    assert result["percentiles"]["50"] == pytest.approx(statistics.median(result["latencies"]))
    assert f"{result['avg_latency']:.4f}" in out


def test_throughput(bench):
    words = ["--num-prompts", "6", "--random-input-len", "5", "--random-output-len", "7", "--n", "2"]
    result = json.loads(bench("throughput", *words, "--json"))
    assert result["num_requests"] == 6
    assert result["total_output_tokens"] == 6 * 7 * 2
    assert result["tokens_per_second"] == pytest.approx(result["total_num_tokens"] / result["elapsed_time"])


@pytest.mark.slow
def test_startup(bench):
    result = json.loads(bench("startup", "--num-iters", "2", "--json"))
    assert len(result["startup_times"]) == len(result["first_token_times"]) == 2
    assert all(
        0 < ready < first for ready, first in zip(result["startup_times"], result["first_token_times"], strict=True)
    )


def test_mistakes_are_sentences(tiny_llama, capsys):
    for words, expected in [
        (["latncy"], "Did you mean 'latency'?"),
        (["latency", str(tiny_llama), "--batch-sise", "1"], "Did you mean '--batch-size'?"),
        (["startup", str(tiny_llama), "--port", "1"], "--port: has no meaning here"),
        (["throughput", str(tiny_llama), "--dataset-name", "hf"], "fetched from the network"),
        (["latency", "no-such-model", "--output-json", "/dev/null/x"], "/dev/null: cannot be made a directory"),
    ]:
        assert main(["bench", *words]) == 2
        told = capsys.readouterr().err
        assert expected in told and "Traceback" not in told
