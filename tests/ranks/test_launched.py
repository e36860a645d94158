"""Ranks that a launcher has started: all meet, compute one model, and get the same outputs; those that differ are named."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest

from core import LLM
from core.api.config import EngineConfig
from core.api.errors import ConfigError, CoreError, EngineDeadError, RequestError, UserError
from core.api.messages import EngineOutput, EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.stats import SchedulerStats
from core_config.resolve import resolve
from core_distributed.hosts import free_ports as module
from core_distributed.hosts.free_ports import free_ports
from core_distributed.hosts.made_key import MadeKey
from core_distributed.launched import clients
from core_distributed.launched.clients import FollowingClient, LeadingClient
from core_distributed.launched.meeting import Launched, Place, arguments_of, meet
from core_distributed.maker import RanksMaker
from core_frontend.library.lora_request import LoRARequest
from core_platforms.cpu.processors import default_threads
from core_supervision.link.secured import read_secret
from tests.adapters.drawn import shapes_of, write_adapter
from tests.apis.serving_processes import ROOT, free_port
from tests.ranks.launched_script import GREEDY, WHOLE, answers
from tests.tiny_models import save_checkpoint

LIMIT_S = 120
LAUNCHED = {"tensor_parallel_size": 2, "distributed_executor_backend": "external_launcher"}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("launched") / "llama")


def environment(number: int, port: int = 29500) -> dict[str, str]:
    """What torchrun sets for a rank."""
    return {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def config_of(path: Path, number: int, port: int = 29500, context: Any = "llm", **settings: Any) -> EngineConfig:
    given = {"model": str(path), **WHOLE, **LAUNCHED, "engine_connect_timeout": 30, **settings}
    resolution = resolve(given, context=context, environ=environment(number, port))
    assert resolution.server.node_rank == number
    return resolution.engine


def torchrun(*words: str, **settings: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *words]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, **settings)


def test_all_ranks_of_torchrun_get_the_outputs_of_one(llama: Path, tmp_path: Path) -> None:
    adapter = str(write_adapter(tmp_path / "adapter", shapes_of(str(llama)), 6, 1, scale=0.2))
    script = ("tests/ranks/launched_script.py", str(llama), adapter, str(tmp_path))
    process = torchrun("--master-port", str(free_port()), *script)
    assert process.wait(LIMIT_S) == 0
    first, second = (json.loads((tmp_path / f"rank-{number}.json").read_text()) for number in range(2))
    assert (first.pop("rank"), second.pop("rank")) == (0, 1)
    assert first == second
    llm = LLM(str(llama), **WHOLE, enable_lora=True)
    one = json.loads(json.dumps(answers(llm, GREEDY)))
    assert first["greedy"] == first["awake"] == one
    adapted = json.loads(json.dumps(answers(llm, GREEDY, LoRARequest("a", 1, adapter))))
    assert first["adapted"] == first["adapted and awake"] == adapted != one
    assert [row[2] for row in first["stopped"]].count("stop") >= 1
    assert len(first["drawn"]) == 6 and len(set(map(str, first["drawn"]))) == 6
    assert first["cached"] > 0 and "300" in first["refused"] and len(first["steps"]) > 1


@contextmanager
def serving(llama: Path) -> Iterator[tuple[httpx.Client, "psutil.Process"]]:
    """A server whose two ranks torchrun has started, with a client."""
    port = free_port()
    words = ["core", "serve", str(llama), "--port", str(port), "--tensor-parallel-size", "2", "--max-model-len", "256"]
    words += ["--distributed-executor-backend", "external_launcher", "--kv-cache-memory-bytes", "8M"]
    process = torchrun("--master-port", str(free_port()), "-m", *words)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S)
    try:
        until(lambda: is_ready(client))
        yield client, psutil.Process(process.pid)
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)
        until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in below))
    finally:
        client.close()
        if process.poll() is None:
            process.kill()


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


def until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_rank_0_serves_and_streams_outlive_a_rank(llama: Path) -> None:
    with serving(llama) as (client, process):
        model = client.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "prompt": [1, 2, 3, 4, 5], "max_tokens": 200, "ignore_eos": True, "temperature": 0}
        whole = client.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"]
        text = ""
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            for place, line in enumerate(line for line in answer.iter_lines() if line.startswith("data: {")):
                text += json.loads(line[6:])["choices"][0]["text"]
                if place == 5:
                    (rank,) = [
                        each for each in process.children(recursive=True) if "core_distributed.rank" in each.cmdline()
                    ]
                    rank.kill()
        assert text == whole


def test_ranks_meet_in_the_store(llama: Path) -> None:
    """Twice in the same run, as a script with two engines does; rank 0 keeps the store, where no launcher does."""
    port = free_port()
    for _ in range(2):
        with ThreadPoolExecutor() as pool:
            own, other = pool.map(lambda number: meet(config_of(llama, number, port), number), range(2))
        assert (own.arguments.address, own.arguments.port) == (other.arguments.address, other.arguments.port)
        assert own.arguments.address == "127.0.0.1" and own.arguments.port != port and not own.arguments.launched
        whole = config_of(llama, 0)
        assert own.config.cache.memory_bytes == other.config.cache.memory_bytes == whole.cache.memory_bytes // 2
        threads = [each.config.plugins.arguments["platform.cpu"]["threads"] for each in (own, other)]
        assert threads == [max(default_threads() // 2, 1)] * 2
        paths = [each.arguments.key_file for each in (own, other)]
        assert paths[0] != paths[1] and read_secret(str(paths[0])) == read_secret(str(paths[1]))
        own.close()
        other.close()
        with pytest.raises(ConfigError, match="cannot be read"):
            read_secret(str(paths[0]))


def test_a_rank_that_does_not_come_is_waited_for_within_the_limit(llama: Path) -> None:
    config = config_of(llama, 0, free_port(), engine_connect_timeout=0.5)
    with pytest.raises(CoreError, match=r"The 2 ranks have not met in the store at 127\.0\.0\.1:\d+ within 0\.5 s"):
        meet(config, 0)


def test_only_scripts_and_servers_meet(llama: Path) -> None:
    config = config_of(llama, 0)
    arguments = arguments_of(config)
    assert arguments.launched
    with pytest.raises(UserError, match="only `core serve` and LLM meet the ranks"):
        RanksMaker(arguments).build(config)


def test_all_ranks_may_have_the_servers_arguments(llama: Path) -> None:
    given = {"model": str(llama), **WHOLE, **LAUNCHED, "port": 1234, "api_key": ["k"]}
    assert resolve(given, context="serve", environ=environment(1)).server.node_rank == 1


@pytest.mark.parametrize(
    ("changes", "environ", "words"),
    [
        ({}, {}, "RANK and WORLD_SIZE are not set"),
        ({"tensor_parallel_size": 4}, environment(0), "WORLD_SIZE is 2, and .* is 4; .*--nproc-per-node 4"),
        ({}, {"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT are not set"),
        ({}, {**environment(0), "WORLD_SIZE": "many"}, "WORLD_SIZE 'many': .*integer"),
        ({}, {**environment(0), "RANK": "2"}, "is not among"),
        ({"kv_offloading_size": 1.0}, environment(0), "not with --distributed-executor-backend external_launcher"),
        ({"data_parallel_size": 2}, environment(0), "not with several engines"),
        ({"disable_custom_all_reduce": True}, environment(0), "gloo knows no keys"),
    ],
)
def test_what_does_not_fit_is_named(llama: Path, changes: dict[str, Any], environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve({"model": str(llama), **WHOLE, **LAUNCHED, **changes}, context="llm", environ=environ)


def test_variables_of_a_launcher_mean_nothing_to_others(llama: Path) -> None:
    resolution = resolve({"model": str(llama), **WHOLE}, context="serve", environ=environment(1))
    assert resolution.server.node_rank == 0 and resolution.engine.plugins.executor == "torch"


class Engine:
    """Stands in for the engine of rank 0."""

    def __init__(self) -> None:
        self.core = SimpleNamespace(config=None, is_halted=False, call=self._call)
        self.added: list[EngineRequest] = []

    def _call(self, method: str, arguments: Any) -> Any:
        raise RequestError("no such adapter", param="adapter", status=404, code="none")

    def add(self, requests: list[EngineRequest]) -> None:
        self.added += requests

    def step(self) -> list[EngineOutput]:
        if not self.added:
            raise EngineDeadError("Rank 1 of 2 was killed.")
        return [EngineOutput(each.request_id, each.choice, 0, [7, 8]) for each in self.added]

    def has_work(self) -> bool:
        return bool(self.added)

    def abort(self, request_ids: list[str]) -> None:
        self.added = []

    def reset_prefix_cache(self, *, restart: bool) -> bool:
        return restart

    def stats(self) -> SchedulerStats:
        return SchedulerStats(num_running=len(self.added))

    def close(self) -> None:
        pass


class Node:
    """Stands in for the ranks of the other process."""

    def __init__(self, *_: Any) -> None:
        self.ended = threading.Event()

    def serve_one(self) -> None:
        self.ended.wait(LIMIT_S)

    def stop(self) -> None:
        self.ended.set()


def request(seed: int, prompt: list[int]) -> EngineRequest:
    return EngineRequest("r", 0, prompt, SamplingParams(max_tokens=2), seed)


@pytest.fixture
def pair(llama: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LeadingClient, FollowingClient]]:
    monkeypatch.setattr(clients, "InprocClient", lambda config: Engine())
    monkeypatch.setattr(clients, "NodeServer", Node)
    first = free_ports("127.0.0.1", 2)
    key = MadeKey()
    place = Place("127.0.0.1", first, first + 1, key.secret)
    made: dict[int, Any] = {}

    def start(number: int) -> None:
        launched = Launched(config_of(llama, number), number, place, MadeKey(key.secret), None)  # type: ignore[arg-type]
        made[number] = FollowingClient(launched) if number else LeadingClient(launched)

    thread = threading.Thread(target=start, args=(1,))
    thread.start()
    start(0)
    thread.join(LIMIT_S)
    yield made[0], made[1]
    made[0].close()
    made[1].close()


def test_other_ranks_get_what_rank_0_gets(pair: tuple[LeadingClient, FollowingClient]) -> None:
    leading, following = pair
    for client, seed in ((leading, 1), (following, 2)):
        client.add([request(seed, [1, 2, 3])])
        assert client.has_work() and not client.core.is_halted
        (output,) = client.step()
        assert output.token_ids == [7, 8] and client.stats().num_running == 1
        with pytest.raises(RequestError, match="no such adapter") as raised:
            client.core.call("load", {"name": "x"})
        assert (raised.value.param, raised.value.status, raised.value.code) == ("adapter", 404, "none")
        assert client.reset_prefix_cache(restart=True) is True
        client.abort(["r"])
        with pytest.raises(EngineDeadError, match="Rank 1 of 2 was killed"):
            client.step()
    with pytest.raises(RequestError, match="worker of rank 1 is in a process of its own"):
        _ = following.worker


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (lambda client: client.add([request(1, [1, 2, 4])]), "the call add with other arguments than rank 0"),
        (lambda client: client.has_work(), r"another call \(has_work\) than rank 0 \(add\)"),
    ],
    ids=["other inputs", "another call"],
)
def test_a_rank_that_goes_another_way_is_told(
    pair: tuple[LeadingClient, FollowingClient], own: Callable[[Any], Any], words: str
) -> None:
    leading, following = pair
    leading.add([request(1, [1, 2, 3])])
    with pytest.raises(CoreError, match=words):
        own(following)


def test_a_rank_does_not_wait_for_an_engine_that_is_gone(pair: tuple[LeadingClient, FollowingClient]) -> None:
    leading, following = pair
    leading.add([request(1, [1])])
    node: Any = following._server
    node.ended.set()
    following.add([request(1, [1])])  # what has come is read first
    with pytest.raises(EngineDeadError, match="The engine of rank 0 has ended"):
        following.has_work()


def test_a_key_that_is_made_is_read_as_a_file() -> None:
    first, second = MadeKey(), MadeKey()
    copy = MadeKey(first.secret)
    assert read_secret(copy.path) == read_secret(first.path) != read_secret(second.path)
    for key in (first, second, copy):
        key.close()
        key.close()


def test_ports_are_free_and_successive(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.LOWEST <= free_ports("127.0.0.1", 5) < module.HIGHEST - 5
    monkeypatch.setattr(module, "_is_free", lambda *_: False)
    with pytest.raises(CoreError, match=r"127\.0\.0\.1: no 5 successive ports .* --master-port"):
        free_ports("127.0.0.1", 5)
