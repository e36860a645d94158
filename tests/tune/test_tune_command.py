"""`core tune` with servers that are stand-ins: what it finds, writes, refuses, and that it leaves no process."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml

from core.commands.main import main
from core.processes import child_environment
from core_commands.bench import serve
from core_config.resolve import resolve

MEMBER = "tests.tune.member"
RUN = serve.run
LOAD = ["--random-input-len", "5", "--random-output-len", "5", "--max-concurrency", "2", "--num-prompts", "4"]


def run(options):
    """A real load, with the speed that the stand-in claims in place of the time that it took."""
    result = RUN(options)
    assert result["completed"] + result["failed"] == options.num_prompts
    return result | {"output_throughput": float(result["model_id"].removeprefix("speed-")), "p90_itl_ms": 1.0}


@pytest.fixture
def members(tmp_path, monkeypatch):
    """The directory in which stand-ins note themselves."""
    place = tmp_path / "members"
    place.mkdir()
    monkeypatch.setenv("MEMBER_DIRECTORY", str(place))
    monkeypatch.setattr("core_commands.client.own_server.MEMBER", MEMBER)
    monkeypatch.setattr("core_commands.tune.workbench.read_bandwidth", lambda **words: 20.0)
    monkeypatch.setattr("core_commands.tune.workbench.serve.run", run)
    return place


def pids(place):
    return [int(each.name) for each in place.iterdir()]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_helps_is_written_and_what_cannot_work_is_named(members, tmp_path, capsys):
    output = tmp_path / "tuned.yaml"
    only = "async_scheduling,enable-prefix-caching,max_num_seqs,kv-cache-dtype,block-size,stream-interval"
    words = [
        "--only",
        only,
        "--minutes",
        "20",
        "--goal",
        "itl:50",
        "--block-size",
        "16",
        "--allow-other-bits",
        "--json",
    ]
    assert main(["tune", *LOAD, *words, "-o", str(output)]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    effects = {row["argument"]: row["effect"] for row in found["effects"]}
    assert effects["async_scheduling"]["percent"] == pytest.approx(100)
    assert effects["enable_prefix_caching"]["percent"] == pytest.approx(-100 / 3)
    assert [row["argument"] for row in found["effects"]] == ["async_scheduling", "enable_prefix_caching"]
    reasons = {row["what"]: row["reason"] for row in found["dropped"]}
    assert reasons["block_size"] == "it was given, so it stays as it is"
    assert reasons["stream_interval"] == "tokens that are sent together break the goal itl"
    assert "the load has at most 2 requests at once" in reasons["max_num_seqs: 64"]
    assert found["chosen"] == {"async_scheduling": True} and found["together"]["low"] == pytest.approx(100)
    bits = {row["argument"]: row for row in found["other_bits"]}
    assert re.match(r"16 of 16 answers differ, the first time at token 2", bits["kv_cache_dtype"]["difference"])

    text = output.read_text()
    assert yaml.safe_load(text) == {"block_size": 16, "async_scheduling": True}
    assert re.search(
        r"^async_scheduling: true  # \+\d.*95%.*pairs\), since the next step is planned", text, re.MULTILINE
    )
    assert re.search(r"^block_size: 16  # given$", text, re.MULTILINE)
    resolution = resolve({"config": str(output)}, context="serve")
    assert resolution.arguments["async_scheduling"][0] is True and not resolution.warnings

    configs = [json.loads(each.read_text()) for each in members.iterdir()]
    assert [{**config, "model": ""} for config in configs].count(
        {"block_size": 16, "model": "", "async_scheduling": True}
    ) == 2
    assert not any(is_alive(pid) for pid in pids(members))


def test_values_with_which_no_server_starts_or_requests_fail_are_dropped(members, tmp_path, capsys):
    (tmp_path / "prompts").write_text("hello\nFAIL\n")
    words = [
        "--dataset",
        str(tmp_path / "prompts"),
        "--output-len",
        "4",
        "--num-prompts",
        "100",
        "--max-concurrency",
        "100",
    ]
    assert main(["tune", *words, "--only", "block-size,max-num-seqs", "--goal", "itl:50", "--minutes", "20"]) == 0
    out = capsys.readouterr().out
    assert "max_num_seqs: 64: the server does not start: its process ended with exit code 1: no room for 64 seq" in out
    assert re.search(r"block_size: 32: .*no block left", out) and "block_size: 64: +0.0%" in out
    assert not any(is_alive(pid) for pid in pids(members))


MISTAKES = {
    "no goal": (["--goal", "ttfb:5"], "--goal ttfb:5: expected METRIC:MS with one of ttft"),
    "no number": (["--goal", "ttft:nan"], "--goal ttft:nan: expected METRIC:MS"),
    "one metric twice": (["--goal", "ttft:500,ttft:100"], "--goal ttft:500 and ttft:100 contradict each other"),
    "an end before the beginning": (["--goal", "ttft:500,e2el:400"], "contradict each other: an answer ends after"),
    "a rate and throughput": (["--request-rate", "4"], "--request-rate 4: at a fixed rate every value has the same"),
    "no such file": (["--dataset", "/nowhere"], "--dataset /nowhere: cannot be read: No such file"),
    "an empty file": (["--dataset", "EMPTY"], "the file is empty; expected a prompt a line"),
    "only empty lines": (["--dataset", "BLANK"], "the file is empty; expected a prompt a line"),
    "no argument": (
        ["--only", "max-num-seq"],
        "--only max-num-seq: not among the arguments that are tried. Did you mean",
    ),
    "two files": (["--dataset", "random", "--dataset-path", "x"], "--dataset-path names a file already"),
    "too long": (["--random-input-len", "20000"], "the model takes 8,192; give shorter prompts"),
    "several models": (["--model-budget", "8GiB"], "core tune starts servers of one model on one host"),
    "no time": (["--minutes", "0"], "--minutes 0: expected"),
    "no model": (["/nowhere/model"], "/nowhere/model"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_sentences_and_start_nothing(case, members, tmp_path, capsys):
    (tmp_path / "empty").write_text("")
    (tmp_path / "blank").write_text("\n \n")
    words, expected = MISTAKES[case]
    named = {"EMPTY": str(tmp_path / "empty"), "BLANK": str(tmp_path / "blank")}
    assert main(["tune", *(named.get(word, word) for word in words)]) == 2
    assert expected in capsys.readouterr().err
    assert not pids(members)


def test_too_little_time_is_a_sentence_and_ends_what_was_started(members, capsys):
    assert main(["tune", *LOAD, "--only", "async-scheduling", "--minutes", "0.001"]) == 2
    assert "so there is no time to try one value and confirm it; give at least" in capsys.readouterr().err
    assert len(pids(members)) == 1 and not any(is_alive(pid) for pid in pids(members))


@pytest.mark.parametrize(
    "number, code", [(signal.SIGINT, 130), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow)]
)
def test_servers_end_with_the_command_however_it_ends(number, code, members):
    words = ["tune", *LOAD, "--only", "async-scheduling", "--minutes", "5"]
    # A suite that a script starts in the background ignores SIGINT, and so would the command.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heard}; import core_commands.client.own_server as own; own.MEMBER = '{MEMBER}'"
    command = [
        sys.executable,
        "-c",
        f"{program}; import sys; from core.commands.main import main; sys.exit(main({words!r}))",
    ]
    process = subprocess.Popen(command, env=child_environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 90
        while len(pids(members)) < 2 and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(60) == code
    finally:
        process.kill()
        process.wait()
    started = pids(members)
    assert len(started) == 2
    while any(map(is_alive, started)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, started))
