"""Ranks in actors of a real Ray cluster of one node: `make test-ray`.

The tokens of one rank, actors and placement group that are gone afterwards, deaths with their names, and streams that go on.
"""

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from core import LLM
from core.api.errors import CoreError, EngineDeadError, UserError
from core_distributed.executor import RanksExecutor
from tests.on_ray.site import actors, answer, groups, nothing_is_left, one_node, ranks, serving, streamed, until
from tests.ranks.test_ranks import DIGITS, DRAWN, FEW, GREEDY, answers
from tests.tiny_models import save_checkpoint

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.ray
ON_RAY = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray", "engine_connect_timeout": 60}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[str]:
    with one_node() as address:
        yield address


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("ray") / "llama")


@pytest.fixture(scope="module")
def one(llama: Path) -> LLM:
    return LLM(model=str(llama), **FEW)


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
        assert f"Rank 1 of 2 (process {rank.pid} of node 1, {host}) was killed by signal 9 (SIGKILL) in step" in dies(
            llm
        )
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
        return (
            hosts.msgspec.structs.replace(found, model=model)
            if actors_begin.is_set()
            else (actors_begin.set() or found)
        )

    actors_begin = threading.Event()  # set once rank 0 has its own configuration
    monkeypatch.setattr(hosts, "_config_of", other)
    with pytest.raises(CoreError, match=r"Node 1 could not run: Node 0 turned this node away: Its dtype is 'float32'"):
        LLM(model=str(llama), **FEW, **ON_RAY)
    nothing_is_left()


def test_a_cluster_without_room_says_what_it_has(llama: Path) -> None:
    settings = {**ON_RAY, "engine_connect_timeout": 1.0, "platform_config": {"threads": 3}}
    with pytest.raises(
        CoreError, match=r"no place within 1 s for 2 bundles of 3 processors \(processors of the nodes: .*: 4"
    ):
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


def test_streams_go_on_after_deaths(llama: Path, cluster: str, tmp_path: Path) -> None:
    """Of an actor, of the rank in it, and of the engine, which Ray knows as the owner of both."""
    log = tmp_path / "log"
    words = ["--tensor-parallel-size", "2", "--distributed-executor-backend", "ray"]
    with serving(llama, cluster, log, words) as (client, process):
        whole = answer(client)
        for victims in (actors, ranks, lambda: engines(process.pid)):

            def kill(victims: Callable[[], list[psutil.Process]] = victims) -> None:
                (victim,) = victims()
                victim.kill()

            assert streamed(client, kill) == whole
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
    with pytest.raises(
        UserError, match=r"no Ray cluster was found \(Could not find .*\); start one with `ray start --head`"
    ):
        joined.Cluster("--flag")
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    with pytest.raises(UserError, match="is that of a remote client"):
        joined.Cluster("--flag")
