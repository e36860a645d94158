"""Ranks in actors of a real Ray cluster of one node: `make test-ray`.

The tokens of one rank, actors and placement group that are gone afterwards, deaths with their names, and streams that go on.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from core import LLM
from core.api.errors import CoreError, EngineDeadError, UserError
from core_distributed.executor import RanksExecutor
from tests.apis.serving_processes import ROOT, free_port
from tests.ranks.test_ranks import DIGITS, DRAWN, FEW, GREEDY, answers
from tests.tiny_models import save_checkpoint

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.ray
LIMIT_S = 120
ON_RAY = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray", "engine_connect_timeout": 60}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[str]:
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, logging_level="WARNING")
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("ray") / "llama")


@pytest.fixture(scope="module")
def one(llama: Path) -> LLM:
    return LLM(model=str(llama), **FEW)


def actors() -> list[psutil.Process]:
    """The processes of all actors of ours on this machine."""
    return [each for each in psutil.process_iter() if named(each).startswith("ray::HostActor")]


def named(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) if process.status() != psutil.STATUS_ZOMBIE else ""
    except psutil.NoSuchProcess:
        return ""


def ranks() -> list[psutil.Process]:
    return [each for each in psutil.process_iter() if "core_distributed.rank" in named(each).split()]


def groups() -> list[str]:
    """The states of the placement groups that there are."""
    states = [group["state"] for group in ray.util.placement_group_table().values()]
    return [state for state in states if state != "REMOVED"]


def until(what: str, check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def nothing_is_left() -> None:
    until("actors are left", lambda: not actors())
    until("ranks are left", lambda: not ranks())
    until("a placement group is left", lambda: not groups())


@contextmanager
def running(llama: Path, **settings: Any) -> Iterator[LLM]:
    llm = LLM(model=str(llama), **FEW, **{**ON_RAY, **settings})
    try:
        yield llm
    finally:
        llm.close()
        del llm
        gc.collect()


def test_two_ranks_answer_as_one_and_leave_nothing(llama: Path, one: LLM) -> None:
    with running(llama, enable_sleep_mode=True) as two:
        for params in (GREEDY, DRAWN, DIGITS):
            assert answers(two, params) == answers(one, params)
        two.sleep(2)
        two.wake_up()
        assert answers(two, GREEDY) == answers(one, GREEDY)
        assert groups() == ["CREATED"]
        (actor,) = actors()
        (rank,) = ranks()
        assert rank.ppid() == actor.pid
        files = {each.path for each in rank.open_files()}
        assert not any("core-key" in path for path in files)
    nothing_is_left()


@pytest.mark.parametrize("division", [(1, 2), (2, 2), (4, 1)], ids=["stages", "stages of two ranks", "four ranks"])
def test_other_divisions(llama: Path, one: LLM, division: tuple[int, int]) -> None:
    tensor, stages = division
    with running(llama, tensor_parallel_size=tensor, pipeline_parallel_size=stages) as llm:
        assert len(actors()) == tensor * stages - 1
        assert answers(llm, GREEDY) == answers(one, GREEDY)
    nothing_is_left()


def dies(llm: LLM) -> str:
    with pytest.raises(EngineDeadError) as raised:
        for _ in range(1000):
            answers(llm, GREEDY)
    return str(raised.value)


def test_a_killed_rank_is_named(llama: Path) -> None:
    with running(llama) as llm:
        (rank,) = ranks()
        rank.kill()
        host = os.uname().nodename
        assert f"Rank 1 of 2 (process {rank.pid} of node 1, {host}) was killed by signal 9 (SIGKILL) in step" in dies(llm)
    nothing_is_left()


def test_a_killed_actor_is_named_also_without_work(llama: Path) -> None:
    with running(llama) as llm:
        client: Any = llm.llm_engine._client
        ranks_of: RanksExecutor = client.core.executor
        (actor,) = actors()
        begin = time.monotonic()
        actor.kill()
        until("the death is noticed", lambda: bool(ranks_of._children.death))
        print(f"a killed actor was named after {time.monotonic() - begin:.3f} s")
        name = f"Node 1 (process {actor.pid} of {os.uname().nodename}, "
        assert ranks_of._children.death.startswith(name) and "was lost with its Ray actor in step" in dies(llm)
    nothing_is_left()


def test_actors_get_variables_that_the_log_names(
    llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("HF_HOME", raising=False)
    with caplog.at_level("INFO"), running(llama):
        assert "Environment variables of this process that Ray's actors get: HF_HUB_OFFLINE" in caplog.text
        (rank,) = ranks()
        assert rank.environ()["HF_HUB_OFFLINE"] == "1"
    nothing_is_left()


def test_an_actor_that_cannot_load_says_why(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from core_distributed.on_ray import hosts

    whole = hosts._config_of

    def other(config: Any, *rest: Any) -> Any:
        found = whole(config, *rest)
        model = hosts.msgspec.structs.replace(found.model, dtype="float32")
        return hosts.msgspec.structs.replace(found, model=model) if actors_begin.is_set() else (actors_begin.set() or found)

    actors_begin = threading.Event()  # set once rank 0 has its own configuration
    monkeypatch.setattr(hosts, "_config_of", other)
    with pytest.raises(CoreError, match=r"Node 1 could not run: Node 0 turned this node away: Its dtype is 'float32'"):
        LLM(model=str(llama), **FEW, **ON_RAY)
    nothing_is_left()


def test_a_cluster_without_room_says_what_it_has(llama: Path) -> None:
    settings = {**ON_RAY, "engine_connect_timeout": 1.0, "platform_config": {"threads": 3}}
    with pytest.raises(CoreError, match=r"no place within 1 s for 2 bundles of 3 processors \(processors of the nodes: .*: 4"):
        LLM(model=str(llama), **FEW, **settings)
    nothing_is_left()


def test_nodes_of_their_own_are_asked_for(llama: Path) -> None:
    settings = {**ON_RAY, "engine_connect_timeout": 1.0, "nnodes": 2}
    with pytest.raises(CoreError, match=r"2 bundles of \d processors, each on a node of its own"):
        LLM(model=str(llama), **FEW, **settings)
    nothing_is_left()


def test_without_nsight_the_start_says_so(llama: Path) -> None:
    with pytest.raises(CoreError, match=r"nsight|nsys"):
        LLM(model=str(llama), **FEW, **ON_RAY, ray_workers_use_nsight=True)
    nothing_is_left()


@contextmanager
def serving(llama: Path, address: str, log: Path) -> Iterator[tuple[httpx.Client, "subprocess.Popen[bytes]"]]:
    port = free_port()
    words = [sys.executable, "-m", "core", "serve", str(llama), "--port", str(port), "--tensor-parallel-size", "2"]
    words += ["--distributed-executor-backend", "ray", "--max-model-len", "256", "--kv-cache-memory-bytes", "8M"]
    with log.open("wb") as file:
        environment = {**os.environ, "RAY_ADDRESS": address}
        process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S)
    try:
        until("the server is not ready", lambda: process.poll() is not None or is_ready(client))
        assert process.poll() is None, log.read_text()
        yield client, process
    finally:
        client.close()
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_streams_go_on_after_deaths(llama: Path, cluster: str, tmp_path: Path) -> None:
    """Of an actor, of the rank in it, and of the engine, which Ray knows as the owner of both."""
    log = tmp_path / "log"
    with serving(llama, cluster, log) as (client, process):
        model = client.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "prompt": [1, 2, 3, 4, 5], "max_tokens": 200, "ignore_eos": True, "temperature": 0}
        whole = client.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"]
        for victims in (actors, ranks, lambda: engines(process.pid)):
            text = ""
            with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                for place, line in enumerate(line for line in answer.iter_lines() if line.startswith("data: {")):
                    text += json.loads(line[6:])["choices"][0]["text"]
                    if place == 5:
                        (victim,) = victims()
                        victim.kill()
            assert text == whole
        assert "was lost with its Ray actor in step" in log.read_text()
    assert process.returncode == 0, log.read_text()
    nothing_is_left()


def engines(pid: int) -> list[psutil.Process]:
    return [each for each in psutil.Process(pid).children() if "core.engine.process" in each.cmdline()]


def test_without_a_cluster_the_start_says_how_to_get_one(
    llama: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from core_distributed.on_ray import cluster as joined

    def nothing(**_: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nMore words.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", nothing)
    with pytest.raises(UserError, match=r"no Ray cluster was found \(Could not find .*\); start one with `ray start --head`"):
        joined.Cluster()
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    with pytest.raises(UserError, match="is that of a remote client"):
        joined.Cluster()
