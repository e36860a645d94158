"""`core bench serve` against a server: what it counts is what the server counted."""

import json
import re

import pytest

from core.commands.main import main
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import run_server
from tests.apis.fake_engine import ANSWERS

NUM_TOKENS = len(ANSWERS[0].encode()) + 1


@pytest.fixture(scope="module")
def server():
    with run_server(ServerConfig(uvicorn_log_level="warning")) as running:
        yield running


@pytest.fixture
def bench(server, capsys):
    def call(*words, url=server.url):
        code = main(["bench", "serve", "--base-url", url, *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def counters(server):
    text = server.http.get("/metrics").text
    names = ("prompt_tokens_total", "generation_tokens_total", "request_success_total")
    found = []
    for name in names:
        rows = re.findall(rf"^core:{name}\{{.*\}} (\S+)$", text, re.MULTILINE)
        found.append(sum(map(float, rows)))
    return found


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_counts_are_the_servers(bench, server, backend):
    before = counters(server)
    words = ["--backend", backend, "--num-prompts", "12", "--random-input-len", "9", "--max-concurrency", "3"]
    code, out, told = bench(*words, "--json", "--metadata", "run=7")
    assert (code, told) == (0, "")
    result = json.loads(out)
    counted = [after - earlier for after, earlier in zip(counters(server), before, strict=True)]
    share = 12 / 13  # one request before the measurement
    assert result["completed"] == 12 and counted[2] == 13
    assert result["total_output_tokens"] == 12 * NUM_TOKENS == round(counted[1] * share)
    assert abs(result["total_input_tokens"] - counted[0] * share) < 40
    assert 1 <= result["max_concurrent_requests"] <= 3
    assert (result["failed"], result["errors"], result["run"], result["model_id"]) == (0, [], "7", "fake-model")


def test_times_are_those_of_the_tokens(bench, tmp_path):
    (tmp_path / "slow.jsonl").write_text('{"prompt": "SLOW"}')
    words = [
        "--dataset-name",
        "custom",
        "--dataset-path",
        str(tmp_path / "slow.jsonl"),
        "--num-prompts",
        "3",
        "--output-len",
        "40",
    ]
    limits = ["--goodput", "ttft:10000", "tpot:1"]
    code, out, _ = bench(*words, *limits, "--json", "--metric-percentiles", "50,99.9", "--save-detailed",
                         "--result-dir", str(tmp_path), "--result-filename", "found.json")  # fmt: skip
    assert code == 0
    result = json.loads(out)
    assert result["median_tpot_ms"] >= 19 and result["median_itl_ms"] >= 15  # a token every 20 ms, at least
    assert result["median_e2el_ms"] > result["median_ttft_ms"] + 19 * (NUM_TOKENS - 2)
    assert result["p99.9_itl_ms"] >= result["p50_itl_ms"]
    assert result["request_goodput"] == 0
    saved = json.loads((tmp_path / "found.json").read_text())
    assert saved["generated_texts"] == [ANSWERS[0]] * 3
    assert saved["output_lens"] == [NUM_TOKENS] * 3
    assert "generated_texts" not in result


def test_a_table_for_people_and_lines_for_programs(bench, tmp_path):
    words = ["--num-prompts", "2", "--random-input-len", "5", "--request-rate", "200", "--append-result"]
    place = ["--result-dir", str(tmp_path), "--result-filename", "all.jsonl"]
    for _ in range(2):
        code, out, _ = bench(*words, *place)
        assert code == 0
    assert "Successful requests:" in out and "P99 TTFT (ms):" in out
    assert len({len(line) for line in out.splitlines()}) == 1
    assert [json.loads(line)["completed"] for line in (tmp_path / "all.jsonl").read_text().splitlines()] == [2, 2]


def test_requests_that_fail_are_counted_and_told(bench, tmp_path):
    (tmp_path / "file.jsonl").write_text('{"prompt": "hi"}\n{"prompt": "hi FAIL"}\n')
    words = ["--dataset-name", "custom", "--dataset-path", str(tmp_path / "file.jsonl"), "--num-prompts", "2"]
    codes = []
    for seed in range(8):
        code, out, told = bench(*words, "--seed", str(seed), "--output-len", "30")
        codes.append(code)
        if code == 0:
            break
        assert "nothing was measured" in told  # the first prompt is tried before the measurement
    assert codes[-1] == 0
    assert re.search(r"Failed requests: +1\n", out) and "not finite" in out


@pytest.mark.parametrize(
    "words, code, expected",
    [
        (["--num-prompts", "0"], 2, "--num-prompts 0: expected"),
        (["--request-rate", "0"], 2, "--request-rate 0: expected"),
        (["--dataset-name", "randm"], 2, "Did you mean 'random'"),
        (["--goodput", "itl:5"], 2, "--goodput itl:5"),
        (["--header", "x"], 2, "expected NAME=VALUE"),
        (["--model", "other"], 2, "server has fake-model"),
        (["--num-promts", "5"], 2, "Did you mean '--num-prompts'"),
        (["--tokenizer", "x", "--seed", "1"], 2, "--tokenizer: not here: no tokenizer is loaded"),
        (["--ramp-up-strategy", "linear"], 2, "needs --ramp-up-start-rps"),
        (["--ramp-up-end-rps", "3"], 2, "need --ramp-up-strategy"),
        (["stray"], 2, "'stray': unexpected"),
        (["--metadata", "max_concurrency=3"], 2, "--metadata max_concurrency: every result has a field of this name"),
        (["--metadata", "p99_ttft_ms=3"], 2, "--metadata p99_ttft_ms"),
        (["--request-rate", "1e-300"], 2, "--request-rate 1e-300: expected"),
        (["--burstiness", "1e-300"], 2, "--burstiness 1e-300: expected"),
        (["--save-result", "--result-dir", "/dev/null/x"], 2, "/dev/null/x: cannot be made a directory"),
        (["--save-result", "--result-dir", "~nobody-here"], 2, "no such home directory"),
        (["--extra-body", '{"temperature": -1}'], 1, "nothing was measured: temperature is -1"),
        (["--endpoint", "/v1/nowhere"], 1, "nothing was measured"),
    ],
)
def test_mistakes_are_sentences(bench, words, code, expected):
    found, out, told = bench(*words, "--random-input-len", "5")
    assert (found, out) == (code, "")
    assert expected in told and "Traceback" not in told


def test_no_server_is_a_sentence(bench):
    code, _, told = bench(url="http://127.0.0.1:9")
    assert code == 1 and "no connection" in told
