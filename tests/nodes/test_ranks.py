"""One engine whose two ranks are on two machines (network namespaces): a slow and lossy network, a cut one, and deaths."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from core import LLM, SamplingParams
from tests.apis.serving_processes import ROOT
from tests.nodes.network import Network
from tests.tiny_models import save_checkpoint

pytestmark = pytest.mark.nodes
PORT = 8123
URL = f"http://127.0.0.1:{PORT}"
LIMIT_S = 120
PROMPT = [1, 2, 3, 4, 5]


class Node:
    """One machine's command."""

    def __init__(self, network: Network, number: int, model: Path, folder: Path) -> None:
        self._log = folder / f"node-{number}-{time.monotonic_ns()}"
        own = ["--node-rank", "1"] if number else ["--port", str(PORT), "--host", "127.0.0.1"]
        command = [
            *network.words("AB"[number]), sys.executable, "-m", "core", "serve", str(model), *own,
            "--tensor-parallel-size", "2", "--nnodes", "2", "--master-addr", network.addresses["A"],
            "--engine-key-file", str(folder / "key"), "--skip-tokenizer-init", "--max-model-len", "256",
            "--kv-cache-memory-bytes", "8M", "--distributed-timeout-seconds", "8",
            *(() if number else ("--engine-stall-timeout", "600")),
        ]  # fmt: skip
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def says(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + LIMIT_S
        while (found := re.search(pattern, self.log)) is None:
            assert time.monotonic() < deadline and self.process.poll() is None, f"{pattern!r} is not in\n{self.log}"
            time.sleep(0.05)
        return found

    def rank(self) -> psutil.Process:
        below = psutil.Process(self.process.pid).children(recursive=True)
        (rank,) = [each for each in below if "core_distributed.rank" in each.cmdline()]
        return rank

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(30) == 0, self.log


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("model") / "llama")


@pytest.fixture(scope="module")
def expected(model: Path) -> list[int]:
    llm = LLM(model=str(model), skip_tokenizer_init=True, max_model_len=256, kv_cache_memory_bytes="8M")
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=100, ignore_eos=True)
    (output,) = llm.generate([PROMPT], params, use_tqdm=False)
    return list(output.outputs[0].token_ids)


@pytest.fixture(scope="module")
def nodes(network: Network, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    folder = tmp_path_factory.mktemp("nodes")
    (folder / "key").write_text("a secret of more than thirty-two characters")
    (folder / "key").chmod(0o600)

    def start(number: int) -> Node:
        return Node(network, number, model, folder)

    running = [start(0), start(1), start]
    try:
        running[0].says("Serving .* at")
        yield running
    finally:
        for node in running[:2]:
            node.end()


@contextmanager
def stream(count: int) -> Iterator[Iterator[int]]:
    """The tokens of a stream."""
    body = {"model": httpx.get(f"{URL}/v1/models").json()["data"][0]["id"], "prompt": PROMPT, "max_tokens": count}
    body |= {"temperature": 0.8, "seed": 5, "ignore_eos": True, "stream": True, "return_token_ids": True}
    with httpx.stream("POST", f"{URL}/v1/completions", json=body, timeout=LIMIT_S) as answer:
        lines = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {"))
        yield (token for line in lines for token in line["choices"][0].get("token_ids") or ())


def until_health_says(pattern: str) -> None:
    """Wait until `/health` is refused with something like that."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        answer = httpx.get(f"{URL}/health")
        if answer.status_code == 503 and re.search(pattern, answer.text):
            return
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def whole_network(network: Network) -> None:
    network.delay_s, network.loss, network.is_cut = 0.0, 0.0, False


def test_a_slow_and_lossy_network(nodes: list[Any], network: Network, expected: list[int]) -> None:
    network.delay_s, network.loss = 0.05, 0.01
    with network.inside("A"), stream(8) as tokens:
        assert list(tokens) == expected[:8]
    network.delay_s, network.loss = 0.0, 0.0
    for side, addresses in (("A", {"127.0.0.1", network.addresses["A"]}), ("B", set())):
        command = [*network.words(side), "ss", "-Htln"]
        listening = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert {line.split()[3].rpartition(":")[0] for line in listening.splitlines()} == addresses


def test_a_killed_rank(nodes: list[Any], network: Network, expected: list[int]) -> None:
    with network.inside("A"), stream(100) as tokens:
        begun = [next(tokens)]
        rank = nodes[1].rank()
        rank.send_signal(signal.SIGKILL)
        until_health_says(rf"Rank 1 of 2 \(process {rank.pid} of node 1\) was killed by signal 9 \(SIGKILL\) in step")
        assert begun + list(tokens) == expected
    nodes[0].says(rf"process {rank.pid} of node 1, {os.uname().nodename}\) was killed")


def test_a_network_that_is_cut_and_comes_back(nodes: list[Any], network: Network, expected: list[int]) -> None:
    with network.inside("A"), stream(100) as tokens:
        begun = [next(tokens)]
        rank = nodes[1].rank()
        network.is_cut = True
        until_health_says(r"Node 1 gave no sign of life for 6 s|Rank 1 of 2 .* did not answer within 8 s")
        nodes[1].says("The engine is gone: the connection was lost")
        assert not rank.is_running()
        network.is_cut = False
        assert begun + list(tokens) == expected


def test_a_node_that_is_stopped_and_started_again(nodes: list[Any], network: Network, expected: list[int]) -> None:
    with network.inside("A"), stream(100) as tokens:
        begun = [next(tokens)]
        nodes[1].end()
        until_health_says(r"Node 1 was stopped in step")
        nodes[1] = nodes[2](1)
        assert begun + list(tokens) == expected


def test_a_node_that_dies_and_is_started_again(nodes: list[Any], network: Network, expected: list[int]) -> None:
    with network.inside("A"), stream(100) as tokens:
        begun = [next(tokens)]
        for process in (nodes[1].rank(), nodes[1].process):
            process.send_signal(signal.SIGKILL)
        nodes[1].process.wait()
        until_health_says(r"Node 1 gave no sign of life|Rank 1 of 2")
        nodes[1] = nodes[2](1)
        assert begun + list(tokens) == expected
