"""Prefill and decode on two machines (network namespaces), with each library that moves pages: slow, lossy, cut, and deaths.

Whatever happens, an answer has the tokens and log-probabilities of one engine that computes everything.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.apis.serving_processes import free_port
from tests.apis.test_kv_transfer import ANSWER, ASKED, KEYS, Server, metric, serving, told, until_ready
from tests.nodes.network import Network
from tests.tiny_models import save_checkpoint

pytestmark = pytest.mark.nodes
MODULES = {"tcp": "core_kv_connectors", "nixl": "nixl_cu12", "mooncake": "mooncake"}
LONG = {**ANSWER, "max_tokens": 24}
LONGER = {**ANSWER, "n": 1, "max_tokens": 350, "stream": True}
PROCESSES = (("A", "engine"), ("A", "front"), ("B", "engine"), ("B", "rank"), ("B", "front"))
STATES = ("leased", "claimed", "answering")
MORE = {"A": ("--kv-lease", "3"), "B": ("--tensor-parallel-size", "2")}
LIMIT_S = 60.0


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
    def server(self, side: str, name: str, *more: str) -> Iterator[Server]:
        """A server that is ready. name: of its log. more: arguments."""
        flag = "--kv-transfer-config."
        role = "kv_producer" if side == "A" else "kv_consumer"
        own = [f"{flag}kv_connector", self.connector, f"{flag}kv_role", role, "--kv-key-file", self.key]
        address = self.network.addresses["A"]
        if side == "A":
            own += [f"{flag}kv_ip", address, f"{flag}kv_port", str(self.kv_port)]
        else:
            own += ["--kv-peers", f"{address}:{self.kv_port}"]
        log = self.place / name
        with serving(log, self.model, *own, *more, prefix=self.network.words(side)) as server:
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

    def is_claimed(self) -> bool:
        """Whether a claim has a connection between the two machines."""
        way = ["state", "established", "dport", "=", f":{self.kv_port}"]
        words = [*self.network.words("B"), "ss", "-Htn", *way]
        return bool(subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip())

    def leases(self, server: Server) -> float:
        """How many leases there are; a step brings the number up to date."""
        self.post("A", server, {"prompt": [1, 5], "max_tokens": 1})
        with self.network.inside("A"):
            return metric(server, "kv_leases")

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


class Stream:
    """An answer that machine `B` gives, read in a thread. has_begun: once some of it came. is_whole: whether all of it did."""

    def __init__(self, pair: Pair, server: Server, body: dict[str, Any]) -> None:
        self.tokens: list[int] = []
        self.has_begun = threading.Event()
        self.is_whole = False
        self._thread = threading.Thread(target=self._read, args=(pair, server, body))
        self._thread.start()

    def end(self) -> None:
        """Wait for its end, whatever that is."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "a request hangs"

    def _read(self, pair: Pair, server: Server, body: dict[str, Any]) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json", "authorization": f"Bearer {KEYS[0]}"},
        )
        try:
            with pair.network.inside("B"), urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                for line in answer:
                    self._take(line.decode().strip())
        except OSError:
            pass  # the process that answers was killed

    def _take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.is_whole = True
        elif line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                self.tokens += choice["token_ids"]
            self.has_begun.set()


def until(condition: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, why
        time.sleep(0.02)


def end(victim: psutil.Process, server: Server) -> None:
    """Kill a process of a server, perhaps its front."""
    victim.kill()
    if victim.pid == server.process.pid:
        server.process.wait(LIMIT_S)


DYING = [*(("tcp", *process) for process in PROCESSES), ("nixl", "A", "front"), ("nixl", "B", "front")]


@pytest.mark.parametrize(("pair", "side", "which"), DYING, indirect=["pair"])
def test_a_process_dies_in_each_state(pair: Pair, side: str, which: str) -> None:
    """An engine, a front or a rank, while the lease waits, while its pages are on their way, and in the answer.

    The machine that answers has two ranks, so that pages are arranged anew.
    """
    running: dict[str, tuple[Server, Path]] = {}
    with ExitStack() as opened:

        def ready(side: str) -> Server:
            """The server of a machine; another one where its front was killed."""
            if side not in running or running[side][0].process.poll() is not None:
                name = f"{side} {len(list(pair.place.iterdir()))}"
                more = ("--max-model-len", "512", *MORE[side])
                running[side] = opened.enter_context(pair.server(side, name, *more)), pair.place / name
            server, log = running[side]
            with pair.network.inside(side):
                until_ready(server, log)
            return server

        def answered(salt: str, params: dict[str, Any] | None = None) -> Stream:
            return Stream(pair, ready("B"), {**LONGER, "cache_salt": salt, "kv_transfer_params": params})

        whole = answered("alone")
        whole.end()
        assert whole.is_whole and len(whole.tokens) == LONGER["max_tokens"]
        for state in STATES:
            salt = f"{side} {which} {state}"
            params = pair.prefilled(ready("A"), cache_salt=salt)
            ready("B")
            front = psutil.Process(running[side][0].process.pid)
            below = front.children(recursive=True)
            (engine,) = filter(is_engine, below)
            ranks = [each for each in below if any("core_distributed.rank" in word for word in each.cmdline())]
            victim = {"engine": [engine], "front": [front], "rank": ranks}[which][0]
            if state == "leased":
                end(victim, running[side][0])
            pair.network.delay_s = 0.2 if state == "claimed" else 0.0
            stream = answered(salt, params)
            if state == "claimed":
                until(pair.is_claimed, "no claim was made")
            elif state == "answering":
                assert stream.has_begun.wait(LIMIT_S)
            if state != "leased":
                end(victim, running[side][0])
            pair.network.delay_s = 0.0
            stream.end()
            assert stream.tokens == whole.tokens[: len(stream.tokens)], salt
            is_gone = (side, which) == ("B", "front") and state != "leased"
            assert stream.is_whole or is_gone, f"{salt}: a request is lost"
            if which == "front":
                assert not psutil.wait_procs([engine, *ranks], LIMIT_S)[1], "an engine outlives its server"
            until(lambda: not pair.leases(ready("A")), f"{salt}: a lease is left")
        before = pair.claims(ready("B"), "received")
        last = answered("last", pair.prefilled(ready("A"), cache_salt="last"))
        last.end()
        assert last.is_whole and last.tokens == whole.tokens
        assert pair.claims(ready("B"), "received") == before + 1
