"""`core run-batch` as a person types it."""

import contextlib
import json
import signal
import subprocess
import sys
import time

import pytest

from core.commands.main import main
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import run_server

COMMAND = [sys.executable, "-P", "-m", "core", "run-batch"]


def write(path, count, max_tokens=8):
    with path.open("w") as file:
        for number in range(count):
            body = {"prompt": f"number {number}", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
            file.write(json.dumps({"custom_id": f"r{number}", "url": "/v1/completions", "body": body}) + "\n")
    return path


def answers(path):
    found = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        assert row["response"]["status_code"] == 200
        found[row["custom_id"]] = row["response"]["body"]["choices"][0]["text"]
    return found


@pytest.mark.parametrize(
    "words, expected",
    [
        ([], "-i IN is missing"),
        (["-i", "in.jsonl"], "-o OUT is missing"),
        (["-i"], "-i: a value is missing"),
        (["-i", "https://x/in.jsonl", "-o", "out"], "only local files"),
        (["-i", "absent.jsonl", "-o", "out"], "absent.jsonl: cannot be read"),
        (["-i", "in.jsonl", "-o", "nowhere/out"], "expected a file in a directory that is there"),
        (["-i", "in.jsonl", "-o", "broken.jsonl"], "is there already"),
        (["-i", "in.jsonl", "-o", "in.jsonl"], "is the input"),
        (["-i", "in.jsonl", "-o", "in.jsonl", "--overwrite"], "is the input"),
        (["-i", "in.jsonl", "-o", "out", "--port", "1"], "--port: has no meaning here, since no port is opened"),
        (["-i", "in.jsonl", "-o", "/dev/null", "--overwrite"], "expected a file"),
        (["-i", "in.jsonl", "-o", "x" * 300], "cannot be written"),
        (["-i", "~nobody-here/in", "-o", "out"], "no such home directory"),
        (["-i", "in.jsonl", "-o", "out", "--overwite"], "unknown argument"),
        (["-i", "broken.jsonl", "-o", "out", "--overwite"], "unknown argument"),
        (["-i", "in.jsonl", "-o", "out", "--model-name", "x"], "--model-name: has no meaning here without --url"),
        (["-i", "in.jsonl", "-o", "out", "--url", "x"], "--url x: expected http://HOST:PORT"),
        (["-i", "in.jsonl", "-o", "out", "--url", "http://x", "MODEL"], "--url names a server"),
    ],
)
def test_mistakes_are_sentences(tmp_path, monkeypatch, capsys, words, expected):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.jsonl", 1)
    (tmp_path / "broken.jsonl").write_text("{")
    assert main(["run-batch", *words]) == 2
    told = capsys.readouterr().err
    assert expected in told and "Traceback" not in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.jsonl", "in.jsonl"]


def test_a_server_answers_instead_of_an_engine(tmp_path, capsys):
    source, out = write(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    with source.open("a") as file:
        line = {"custom_id": "r3", "url": "/v1/completions", "body": {"prompt": "x", "model": "other"}}
        file.write(json.dumps(line) + "\n")
    words = ["run-batch", "-i", str(source), "-o", str(out)]
    with run_server(ServerConfig(uvicorn_log_level="warning", api_keys=("key",))) as server:
        assert main([*words, "--url", server.url]) == 1
        assert "key" in capsys.readouterr().err
        assert main([*words, "--url", server.url, "--api-key", "key", "--max-concurrency", "2"]) == 0
    told = capsys.readouterr()
    assert told.out == f"{out}: 4 results, 1 of them errors\n"
    assert "1 x The model 'other' does not exist" in told.err
    statuses = [json.loads(line)["response"]["status_code"] for line in out.read_text().splitlines()]
    assert statuses == [200, 200, 200, 404]
    assert main([*words, "--overwrite", "--url", "http://127.0.0.1:9"]) == 1
    assert "no connection" in capsys.readouterr().err and out.exists()


@pytest.mark.slow
def test_a_real_model_without_a_network(tmp_path, tiny_llama):
    source, out = write(tmp_path / "in.jsonl", 5), tmp_path / "out.jsonl"
    words = ["-i", str(source), "-o", str(out), str(tiny_llama), "--max-num-seqs", "2", "--api-key", "k"]
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "--api-key: has no meaning here" in done.stderr
    done = subprocess.run([*COMMAND, *words[:-2]], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"{out}: 5 results\n"), done.stderr
    assert set(answers(out)) == {f"r{number}" for number in range(5)}
    assert not (tmp_path / "out.jsonl.partial").exists()


def num_lines(path):
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes().count(b"\n")
    return 0


def ended(words, out, number):
    """The exit code and words of a run that a signal ended in its middle."""
    partial = out.with_name(f"{out.name}.partial")
    for _ in range(5):  # on a busy machine a run may be whole before the signal comes
        process = subprocess.Popen([*words, str(out)], stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not out.exists() and num_lines(partial) <= 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        _, told = process.communicate(timeout=30)
        if not out.exists():
            return process.returncode, told
        out.unlink()
    raise AssertionError("every run was whole before its signal came")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_ended_goes_on_with_the_same_answers(tmp_path, tiny_llama, number):
    source, out = write(tmp_path / "in.jsonl", 60, max_tokens=60), tmp_path / "out.jsonl"
    words = [*COMMAND, "-i", str(source), str(tiny_llama), "--max-num-seqs", "2", "-o"]
    subprocess.run([*words, str(tmp_path / "whole.jsonl")], check=True, capture_output=True, timeout=120)
    code, told = ended(words, out, number)
    if number == signal.SIGINT:
        assert code == 130
        assert "results are kept in" in told and "Traceback" not in told
    done = subprocess.run([*words, str(out)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "going on" in done.stderr
    assert answers(out) == answers(tmp_path / "whole.jsonl")
