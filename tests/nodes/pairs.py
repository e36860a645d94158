"""Two machines (network namespaces) of which one computes prompts and the other answers them: what the tests of both share."""

from __future__ import annotations

import importlib.util
import json
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
from tests.apis.test_kv_transfer import ANSWER, ASKED, KEYS, Server, metric, serving, until_ready
from tests.nodes.network import Network
from tests.tiny_models import save_checkpoint

MODULES = {"tcp": "core_kv_connectors", "nixl": "nixl_cu12", "mooncake": "mooncake"}
LIMIT_S = 60.0


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
        with self._begun(side, name, *more) as server:
            self._until_ready(side, server, name)
            yield server

    def both(self, opened: ExitStack, names: dict[str, str], more: dict[str, tuple[str, ...]]) -> list[Server]:
        """The servers of both machines, which start at the same time. names: of their logs."""
        servers = {
            side: opened.enter_context(self._begun(side, name, *more.get(side, ()))) for side, name in names.items()
        }
        for side, server in servers.items():
            self._until_ready(side, server, names[side])
        return list(servers.values())

    def _until_ready(self, side: str, server: Server, name: str) -> None:
        with self.network.inside(side):
            until_ready(server, self.place / name)

    @contextmanager
    def _begun(self, side: str, name: str, *more: str) -> Iterator[Server]:
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
