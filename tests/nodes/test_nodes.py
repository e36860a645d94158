"""A group of engines on two machines (network namespaces): a slow and lossy network, a cut one, and a machine that dies."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.apis.serving_processes import ROOT
from tests.apis.test_apart import Begin, Command, expected, stream, text
from tests.group.test_other_commands import until_states
from tests.nodes.network import Network

pytestmark = pytest.mark.nodes
PORT = 29550


@pytest.fixture
def begin(tmp_path: Path, network: Network) -> Iterator[Begin]:
    key = tmp_path / "key"
    key.write_text("a secret of more than thirty-two characters")
    key.chmod(0o600)
    commands: list[Command] = []

    def start(side: str, role: str, **options: object) -> Command:
        meeting = {"address": network.addresses["A"], "key_file": key, "size": 2, "own": 1}
        commands.append(Command(role, PORT, tmp_path, network.words(side), **meeting, **options))
        return commands[-1]

    network.delay_s, network.loss, network.is_cut = 0.0, 0.0, False
    yield start
    for command in commands:
        if command.process.poll() is None:
            command.process.kill()
        command.process.wait()


def test_a_slow_and_lossy_network(begin: Begin, network: Network) -> None:
    network.delay_s, network.loss = 0.05, 0.01
    front = begin("A", "api_server")
    other = begin("B", "engine", first=1)
    url = front.url()
    with network.inside("A"):
        with ExitStack() as streams:
            texts = [streams.enter_context(stream(url, 150)) for _ in range(8)]
            begun = [next(each) for each in texts]
            engines = httpx.get(f"{url}/health").json()["engines"]
            assert all(each["num_running"] for each in engines)
            assert [first + "".join(rest) for first, rest in zip(begun, texts, strict=True)] == [expected(150)] * 8
        assert "is gone" not in front.log
    for side, addresses in (("A", {"127.0.0.1", network.addresses["A"]}), ("B", set())):
        listening = subprocess.run(
            [*network.words(side), "ss", "-Htln"], check=True, capture_output=True, text=True
        ).stdout
        assert {line.split()[3].rpartition(":")[0] for line in listening.splitlines()} == addresses
    assert other.end() == 0 and front.end() == 0


def test_a_network_that_is_cut_and_comes_back(begin: Begin, network: Network) -> None:
    front = begin("A", "api_server")
    other = begin("B", "engine", first=1)
    url = front.url()
    with network.inside("A"):
        with ExitStack() as streams:
            texts = [streams.enter_context(stream(url, 240)) for _ in range(4)]
            begun = [next(each) for each in texts]
            network.is_cut = True
            assert [first + "".join(rest) for first, rest in zip(begun, texts, strict=True)] == [expected(240)] * 4
        assert re.search(r"The engine 1 of 2 of process \d+ of .* is gone: ", front.log)
        assert text(url, 9) == expected(9)
        other.says("The API server is gone: .* Its requests end here; the engine waits for another one")
        network.is_cut = False
        until_states(url, "running", "running")
        assert other.engine_pid(), "it is the engine that was there before"
    assert other.end() == 0 and front.end() == 0


def test_a_machine_that_dies(begin: Begin, network: Network) -> None:
    front = begin("A", "api_server")
    other = begin("B", "engine", first=1)
    url = front.url()
    with network.inside("A"):
        with ExitStack() as streams:
            texts = [streams.enter_context(stream(url, 150)) for _ in range(4)]
            begun = [next(each) for each in texts]
            for process in (*psutil.Process(other.process.pid).children(recursive=True), other.process):
                process.send_signal(signal.SIGKILL)
            assert [first + "".join(rest) for first, rest in zip(begun, texts, strict=True)] == [expected(150)] * 4
        health = httpx.get(f"{url}/health").json()
        assert [each["state"] for each in health["engines"]] == ["running", "restarting"], json.dumps(health)
        begin("B", "engine", first=1)
        until_states(url, "running", "running")
    assert front.end() == 0


def test_the_check_names_the_machine_that_is_cut_off(network: Network, tmp_path: Path) -> None:
    network.delay_s, network.loss, network.is_cut = 0.05, 0.01, False
    key = tmp_path / "key"
    key.write_text("a secret of more than thirty-two characters")
    key.chmod(0o600)
    core = [sys.executable, "-m", "core", "nodes"]
    answering = [
        subprocess.Popen(
            [*network.words(side), *core, "answer", "--address", address, "--key-file", str(key)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        for side, address in network.addresses.items()
    ]

    def checked() -> tuple[int, dict[str, Any]]:
        words = [*network.words("A"), *core, "check", *network.addresses.values(), "--key-file", str(key), "--json"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, check=False)
        return done.returncode, json.loads(done.stdout)

    try:
        for process in answering:
            assert process.stdout is not None and process.stdout.readline()
        code, found = checked()
        assert (code, found["culprits"]) == (0, []), found
        assert all(
            each["reached"]["interface"].startswith("wire") for each in found["pairs"] if each["source"] != "here"
        )
        network.is_cut = True
        code, found = checked()
        assert code == 1 and found["culprits"][0].startswith(
            f"{network.addresses['B']}:29550 is reached by none of 2: no answer"
        )
    finally:
        network.is_cut = False
        for process in answering:
            process.terminate()
            process.communicate()
