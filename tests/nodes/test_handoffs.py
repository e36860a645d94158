"""Prefill and decode on two machines (network namespaces), with each library that moves pages: slow, lossy, cut, and deaths.

Whatever happens, an answer has the tokens and log-probabilities of one engine that computes everything.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.apis.serving_processes import free_port
from tests.apis.test_kv_transfer import ANSWER, ASKED, Server, metric, serving, told, until_ready
from tests.nodes.network import Network
from tests.tiny_models import save_checkpoint

pytestmark = pytest.mark.nodes
MODULES = {"tcp": "core_kv_connectors", "nixl": "nixl_cu12", "mooncake": "mooncake"}
LONG = {**ANSWER, "max_tokens": 24}


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    assert os.geteuid() == 0, "network namespaces need root"
    network = Network()
    yield network
    network.close()


@pytest.fixture(params=MODULES)
def pair(request: pytest.FixtureRequest, network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    if importlib.util.find_spec(MODULES[request.param]) is None:
        pytest.skip("make test-nodes installs it")
    monkeypatch.setenv("UCX_TLS", "tcp")  # both ends are one machine to UCX, which would use its memory otherwise
    network.delay_s, network.loss, network.is_cut = 0.0, 0.0, False
    return Pair(request.param, network, tmp_path)


class Pair:
    """The two machines: prompts are computed on `A`, and answered on `B`."""

    def __init__(self, connector: str, network: Network, place: Path) -> None:
        self.network = network
        self.place = place
        self.model = save_checkpoint(place / "model", family="llama")
        self.connector = connector
        self.kv_port = free_port()
        key = place / "key"
        key.write_text("a secret of more than thirty-two characters")
        key.chmod(0o600)
        self.key = str(key)

    @contextmanager
    def server(self, side: str, name: str) -> Iterator[Server]:
        """A server that is ready. name: of its log."""
        flag = "--kv-transfer-config."
        role = "kv_producer" if side == "A" else "kv_consumer"
        own = [f"{flag}kv_connector", self.connector, f"{flag}kv_role", role, "--kv-key-file", self.key]
        address = self.network.addresses["A"]
        if side == "A":
            own += [f"{flag}kv_ip", address, f"{flag}kv_port", str(self.kv_port)]
        else:
            own += ["--kv-peers", f"{address}:{self.kv_port}"]
        log = self.place / name
        with serving(log, self.model, *own, prefix=self.network.words(side)) as server:
            with self.network.inside(side):
                until_ready(server, log)
            yield server

    def post(self, side: str, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        with self.network.inside(side):
            status, answer = server.post(body)
        assert status == 200, answer
        return answer

    def prefilled(self, server: Server, **more: Any) -> dict[str, Any]:
        asked = {**ANSWER, "max_tokens": 1, "n": 1, "kv_transfer_params": ASKED, **more}
        params: dict[str, Any] = self.post("A", server, asked)["kv_transfer_params"]
        return params

    def claims(self, server: Server, what: str) -> float:
        with self.network.inside("B"):
            return metric(server, "kv_handoffs_total", 'side="claim"', f'what="{what}"')


def kill(server: Server) -> None:
    """Let a machine die: the server and its engine, at once."""
    for process in (*psutil.Process(server.process.pid).children(recursive=True), server.process):
        process.send_signal(signal.SIGKILL)


def test_answers_are_those_of_one_engine_whatever_the_network_does(pair: Pair) -> None:
    network = pair.network
    with pair.server("A", "prefill") as one, pair.server("B", "decode") as other:
        alone = told(pair.post("A", one, {**LONG, "cache_salt": "alone"}))

        def answered(params: dict[str, Any]) -> bool:
            """Whether a prompt was answered on pages of the other machine; no other one is in the cache, by its salt."""
            before = pair.claims(other, "received")
            salt = params.pop("salt")
            answer = pair.post("B", other, {**LONG, "cache_salt": salt, "kv_transfer_params": params})
            assert told(answer) == alone
            return pair.claims(other, "received") == before + 1

        def prefilled(salt: str) -> dict[str, Any]:
            return {**pair.prefilled(one, cache_salt=salt), "salt": salt}

        assert answered(prefilled("plain"))
        network.delay_s, network.loss = 0.05, 0.01
        assert any([answered(prefilled(f"slow {number}")) for number in range(3)])
        network.delay_s, network.loss = 0.0, 0.0
        params = prefilled("cut")
        network.is_cut = True
        assert not answered(params)
        network.is_cut = False
        params = prefilled("dead")
        kill(one)
        assert not answered(params), "its prompt is computed where it is answered"
    with ExitStack() as opened:
        one, other = (
            opened.enter_context(pair.server("A", "prefill 2")),
            opened.enter_context(pair.server("B", "decode 2")),
        )
        assert answered(prefilled("anew")), "both have been replaced"
        params = prefilled("engine")
        salt = params.pop("salt")
        (engine,) = [each for each in psutil.Process(other.process.pid).children(recursive=True) if is_engine(each)]
        engine.send_signal(signal.SIGKILL)
        answer = pair.post("B", other, {**LONG, "cache_salt": salt, "kv_transfer_params": params})
        assert told(answer) == alone, "the front keeps the request of an engine that has died"


def is_engine(process: psutil.Process) -> bool:
    return "core.engine.process" in process.cmdline()
