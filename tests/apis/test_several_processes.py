"""Several API processes under a supervisor: what their clients see of each other's deaths, and of the engine's."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

from core.api.config import CacheConfig, EngineConfig, ModelConfig, PluginChoices, SchedulerConfig
from core.api.errors import EngineDeadError
from core.api.messages import EngineReady
from core_apis.processes.api_child import ApiChild
from core_apis.processes.api_messages import Alive, Channel, EngineAt, EngineDied, EngineGone, FromApi, Serving, ToApi
from core_apis.processes.engine_events import EngineEvents, SharedEngineSource
from core_apis.processes.shares import engine_share, server_share, share
from core_apis.processes.supervised_engine import SupervisedEngine
from core_config.served.server_config import ServerConfig
from core_formats.server_limits import ServerLimits
from core_observers.shared_metrics import Family, Sample, merged, page
from core_supervision.link.connection import EngineConnection
from core_supervision.link.zmq_client import ZmqClient
from tests.apis.serving_processes import announced
from tests.engine.fakes import reference

PROMPT = [1, 2, 3]
KNOCKERS = 4


@dataclass
class Several:
    """A server with two API processes."""

    process: subprocess.Popen[str]
    url: str

    def pids(self, module: str) -> list[int]:
        """Of its children that run a module."""
        children = psutil.Process(self.process.pid).children()
        return [child.pid for child in children if module in command(child)]

    @property
    def api_pids(self) -> list[int]:
        return self.pids("core_apis.processes.api_process")

    def text(self, count: int) -> str:
        """An answer on a connection of its own."""
        body = {"model": "fake", "prompt": PROMPT, "max_tokens": count}
        return str(httpx.post(f"{self.url}/v1/completions", json=body, timeout=20).json()["choices"][0]["text"])

    @contextmanager
    def stream(self, count: int) -> Iterator[Iterator[str]]:
        """The texts of a stream that has begun."""
        body = {"model": "fake", "prompt": PROMPT, "max_tokens": count, "stream": True}
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=30) as answer:
            lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
            yield (json.loads(line)["choices"][0]["text"] for line in lines if line != "[DONE]")

    def end(self) -> str:
        """What it wrote to standard error; it has ended by itself."""
        _, errors = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, errors
        assert "Traceback" not in errors
        return errors


def command(process: psutil.Process) -> list[str]:
    """Its command line; empty once it has ended, which may happen at any time."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # also of a child that was killed and not yet waited for
        return []


def expected(count: int) -> str:
    return bytes(reference(PROMPT, count)).decode()


def until(what: str, holds: object) -> None:
    assert callable(holds)
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@contextmanager
def knocking(url: str) -> Iterator[list[str]]:
    """Ask for the server's health again and again; what became of connections that ended without an answer."""
    drops: list[str] = []
    over = threading.Event()

    def knock() -> None:
        while not over.wait(0.001):
            try:
                httpx.get(f"{url}/health")
            except httpx.ConnectError:
                pass  # nobody listens any more
            except httpx.HTTPError as error:
                drops.append(repr(error))

    clients = [threading.Thread(target=knock) for _ in range(KNOCKERS)]
    for client in clients:
        client.start()
    try:
        yield drops
    finally:
        over.set()
        for client in clients:
            client.join()


@contextmanager
def several(tmp_path: Path, num_engines: int = 1, num_started: int = 0) -> Iterator[Several]:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-m", "tests.apis.serve_several", str(num_engines), str(num_started)]
    with announced(words, environment) as (process, url):
        yield Several(process, url)


def test_a_death_costs_its_own_connections_alone_and_all_drain(tmp_path: Path) -> None:
    with several(tmp_path) as server:
        before = server.api_pids
        assert len(before) == 2
        with server.stream(60) as texts:
            begun = next(texts)
            (engine,) = server.pids("core.engine.process")
            os.kill(engine, signal.SIGKILL)
            assert begun + "".join(texts) == expected(60), "a stream goes on in the next engine"
        page = httpx.get(f"{server.url}/metrics").text
        assert all(f'core:prompt_tokens_total{{api_process="{number}"' in page for number in "01")
        assert page.count("core:num_requests_running{") == 1

        os.kill(before[0], signal.SIGKILL)
        until("the other one answers", lambda: server.text(5) == expected(5))
        until("there are two again", lambda: len(server.api_pids) == 2 and before[0] not in server.api_pids)

        with server.stream(100) as texts:
            begun = next(texts)
            everybody = psutil.Process(server.process.pid).children(recursive=True)
            for each in (*everybody, server.process):  # as service managers do
                each.send_signal(signal.SIGTERM)
            with knocking(server.url) as drops:
                assert begun + "".join(texts) == expected(100)
                errors = server.end()
        assert not drops, "whoever got a connection got an answer"
        assert "API process 0 was killed by signal 9 (SIGKILL)" in errors
        assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_two_processes_before_two_engines(tmp_path: Path) -> None:
    with several(tmp_path, num_engines=2) as server:
        engines = server.pids("core.engine.process")
        assert len(engines) == 2
        with server.stream(80) as first, server.stream(80) as second, server.stream(80) as third:
            begun = [next(texts) for texts in (first, second, third)]
            os.kill(engines[0], signal.SIGKILL)
            whole = [start + "".join(texts) for start, texts in zip(begun, (first, second, third), strict=True)]
        assert whole == [expected(80)] * 3
        until("there are two engines again", lambda: len(server.pids("core.engine.process")) == 2)
        page = httpx.get(f"{server.url}/metrics").text
        assert page.count("core:num_requests_running{") == 2 and 'engine="1"' in page
        health = httpx.get(f"{server.url}/health").json()
        assert [each["engine"] for each in health["engines"]] == [0, 1]
        os.kill(server.api_pids[0], signal.SIGKILL)
        until("the other one answers", lambda: server.text(5) == expected(5))
        until("there are two again", lambda: len(server.api_pids) == 2)
        server.process.send_signal(signal.SIGTERM)
        server.end()
        assert not list(tmp_path.iterdir())


def test_nothing_is_left_of_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with several(tmp_path) as server:
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert len(children) == 5  # the engine, two API processes, and what each of them prepares requests in
        server.process.kill()
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("total", [0, 1, 2, 7, 2048])
def test_limits_of_all_processes_make_the_total(total: int) -> None:
    parts = [share(total, number, 3) for number in range(3)]
    assert sum(parts) == (max(3, total) if total else 0)
    assert max(parts) - min(parts) <= 1


def test_what_a_process_has_of_the_limits() -> None:
    model = ModelConfig(model="m", served_names=("m",), max_model_len=8, vocab_size=8)
    scheduler = SchedulerConfig(max_num_queued_reqs=9)
    engine = EngineConfig(
        model=model, cache=CacheConfig(), scheduler=scheduler, plugins=PluginChoices(loader="", platform="")
    )
    assert engine_share(engine, 0, 2).scheduler.max_num_queued_reqs == 5
    assert engine_share(engine, 1, 2).scheduler.max_num_queued_reqs == 4
    limits = server_share(ServerConfig(), 1, 4).limits
    assert limits.max_connections == 512
    assert limits.max_stored_responses == 0
    assert limits.max_sessions_per_key == 0
    shared = server_share(ServerConfig(), 1, 4, shares_sessions=True).limits
    assert shared.max_sessions_per_key == ServerLimits().max_sessions_per_key
    assert limits.max_body_size == ServerConfig().limits.max_body_size


def test_series_of_each_process() -> None:
    def family(value: float) -> list[Family]:
        return [Family("core:x", "Some x.", "counter", [Sample("core:x_total", {"model_name": "m"}, value)])]

    text = page(merged({1: family(2.0), 0: family(3.0)})).decode()
    assert text.splitlines() == [
        "# HELP core:x_total Some x.",
        "# TYPE core:x_total counter",
        'core:x_total{api_process="0",model_name="m"} 3.0',
        'core:x_total{api_process="1",model_name="m"} 2.0',
    ]


async def test_an_engine_s_death_is_told_by_the_supervisor() -> None:
    news = EngineEvents("ipc://first")
    waiting = asyncio.ensure_future(news.obituary("ipc://first"))
    await asyncio.sleep(0)
    news.report(EngineDied("It was killed.", "killed", (5,)))
    error = await waiting
    assert error is not None
    assert (str(error), error.cause, tuple(error.suspects)) == ("It was killed.", "killed", (5,))
    news.report(EngineAt("ipc://second"))
    assert (await news.obituary("ipc://first")) is error
    assert news.address == "ipc://second"
    news.check()
    news.report(EngineGone("Enough.", "killed"))
    with pytest.raises(EngineDeadError, match="Enough"):
        news.check()


def test_a_number_of_the_engine_before_declares_nobody_gone() -> None:
    @dataclass
    class Client:
        epoch: int
        gone: list[int] = field(default_factory=list)

        def declare_gone(self, client: int) -> None:
            self.gone.append(client)

    engine = SupervisedEngine(lambda news: None, lambda error: None)
    client = Client(epoch=2)
    engine._client = client  # type: ignore[assignment]
    engine.declare_gone(1, 3)  # a process that died after a restart, before it had connected again
    assert client.gone == []
    engine.declare_gone(2, 4)
    assert client.gone == [4]


async def test_a_process_that_comes_during_a_long_call_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(EngineConnection):
        clock_offset_s = 0.0

        async def greet(self, start: object = None) -> EngineReady:
            for _ in range(50):  # the engine sleeps, and answers afterwards
                await asyncio.sleep(0)
            return EngineReady(7, 8, 16, 64, "fake", [], 3)

    connect = ZmqClient.connect
    monkeypatch.setitem(connect.__func__.__kwdefaults__, "timeout_s", 0.0)  # type: ignore[attr-defined]
    found: list[ZmqClient] = []
    source = SharedEngineSource(EngineEvents("ipc://x"), Late, found.append, lambda number: None)
    client = await source.first()
    assert (client.epoch, client.ready.client) == (7, 3)
    assert found == [client]


async def test_a_process_that_hangs_is_killed() -> None:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    child = ApiChild(0, process, await Channel.open(ours, FromApi), patience_s=0.3)
    silent = await Channel.open(theirs, ToApi)
    silent.send(Alive())
    silent.send(Serving(3, 0))
    assert await child.receive() == Serving(3, 0)
    assert await child.receive() is None
    assert await child.ended() == "gave no sign of life for 0.3 s and was killed"
    assert process.poll() == -signal.SIGKILL
    silent.close()
