"""Ranks on two Ray nodes on two machines (network namespaces, as root): `make test-ray`.

The tokens of one rank, a network that is cut and comes back, and a node that dies.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from core import LLM, SamplingParams
from tests.apis.serving_processes import ROOT
from tests.nodes.network import Network
from tests.on_ray.site import BODY, LIMIT_S, actors, is_ready, ranks, streamed, until
from tests.tiny_models import save_checkpoint

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/net/tun").exists(), reason="namespaces need root"),
]
PORT, RAY_PORT = 8124, 6390
LATEST = Path("/tmp/ray/ray_current_cluster")


class Command:
    """A command on one of the machines, with its log."""

    def __init__(self, network: Network, side: str, log: Path, *words: str, **environment: str) -> None:
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*network.words(side), sys.executable, "-m", *words], cwd=ROOT, env={**os.environ, **environment},
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text()

    def below(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            below = self.below()
            self.process.send_signal(number)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
            for each in below:
                if each.is_running():
                    each.kill()


class Site:
    """Two Ray nodes and the engine on the first."""

    def __init__(self, network: Network, model: Path, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.nodes = {"A": self.node("A")}
        until("the head runs", lambda: "Ray runtime started" in self.nodes["A"].log)
        self.nodes["B"] = self.node("B")
        until("the node runs", lambda: "Ray runtime started" in self.nodes["B"].log)
        words = ["core", "serve", str(model), "--port", str(PORT), "--tensor-parallel-size", "2", "--nnodes", "2"]
        words += ["--distributed-executor-backend", "ray", "--max-model-len", "256", "--kv-cache-memory-bytes", "8M"]
        words += ["--served-model-name", "model", "--distributed-timeout-seconds", "8", "--engine-stall-timeout", "600"]
        words += ["--skip-tokenizer-init"]
        address = f"{network.addresses['A']}:{RAY_PORT}"
        self.server = Command(network, "A", folder / "server", *words, RAY_ADDRESS=address)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=LIMIT_S)
        with network.inside("A"):
            until("the server is ready", lambda: self.server.process.poll() is not None or is_ready(self.client))
        assert self.server.process.poll() is None, self.server.log

    def node(self, side: str) -> Command:
        own = ["--block", "--num-cpus", "2", "--object-store-memory", str(100 << 20)]
        if side == "A":
            own += ["--head", "--port", str(RAY_PORT), "--include-dashboard", "false", "--disable-usage-stats"]
        else:
            own += ["--address", f"{self.network.addresses['A']}:{RAY_PORT}"]
        log = self.folder / f"node-{side}-{time.monotonic_ns()}"
        own += ["--node-ip-address", self.network.addresses[side]]
        return Command(self.network, side, log, "ray.scripts.scripts", "start", *own)

    def health_says(self, pattern: str) -> None:
        def says() -> bool:
            answer = self.client.get("/health")
            return answer.status_code == 503 and re.search(pattern, answer.text) is not None

        until(f"health says {pattern}", says)

    def close(self) -> None:
        self.client.close()
        for command in (self.server, self.nodes["B"], self.nodes["A"]):
            command.end()
        # A head that is ended by a signal leaves its address there, which other programs would join.
        if LATEST.exists() and LATEST.read_text().strip() == f"{self.network.addresses['A']}:{RAY_PORT}":
            LATEST.unlink()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("model") / "llama")


@pytest.fixture(scope="module")
def expected(model: Path) -> list[int]:
    llm = LLM(model=str(model), skip_tokenizer_init=True, max_model_len=256, kv_cache_memory_bytes="8M")
    wanted: Any = BODY
    params = SamplingParams(temperature=0, max_tokens=wanted["max_tokens"], ignore_eos=True)
    (output,) = llm.generate([wanted["prompt"]], params, use_tqdm=False)
    return list(output.outputs[0].token_ids)


@pytest.fixture(scope="module")
def site(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    network = Network()
    try:
        site = Site(network, model, tmp_path_factory.mktemp("site"))
        try:
            yield site
        finally:
            site.close()
    finally:
        network.close()


def test_two_machines_answer_as_one_rank(site: Site, expected: list[int]) -> None:
    with site.network.inside("A"):
        assert streamed(site.client) == expected
    (actor,), (rank,) = actors(), ranks()
    assert actor.pid in [each.pid for each in site.nodes["B"].below()] and rank.ppid() == actor.pid


def test_a_network_that_is_cut_and_comes_back(site: Site, expected: list[int]) -> None:
    """It is noticed by the engine's own signs of life: Ray needs about a minute."""
    (rank,) = ranks()

    def cut() -> None:
        site.network.is_cut = True
        site.health_says(r"Node 1 gave no sign of life for 6 s|Rank 1 of 2 .* did not answer within 8 s")
        until("the rank ends with its engine", lambda: not rank.is_running())
        site.network.is_cut = False

    with site.network.inside("A"):
        assert streamed(site.client, cut) == expected


def test_a_node_that_dies_and_another_that_comes(site: Site, expected: list[int]) -> None:
    def die() -> None:
        victim = site.nodes["B"]
        for each in [*victim.below(), psutil.Process(victim.process.pid)]:
            each.kill()
        victim.process.wait()
        site.health_says(r"Node 1 (was lost with its Ray actor|lost the connection|gave no sign)|Rank 1 of 2")
        site.nodes["B"] = site.node("B")

    with site.network.inside("A"):
        assert streamed(site.client, die) == expected
