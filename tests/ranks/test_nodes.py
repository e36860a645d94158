"""Ranks of two nodes on one machine: the tokens of one process, nodes that are turned away, and the death of a rank."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from core import LLM
from core.api.config import EngineConfig
from core.api.errors import CoreError, EngineDeadError, RequestError
from core_config.resolve import resolve
from core_distributed import executor
from core_distributed.arguments import RanksArguments
from core_distributed.hosts import opening
from core_distributed.hosts.likeness import config_for
from core_distributed.hosts.node import NodeServer
from core_distributed.hosts.nodes import Nodes
from core_frontend.library.lora_request import LoRARequest
from core_supervision.death import of_rank
from tests.adapters.drawn import shapes_of, write_adapter
from tests.adapters.engines import bits_of
from tests.apis.serving_processes import free_ports
from tests.ranks import test_context as context
from tests.ranks.test_ranks import DRAWN, FEW, GREEDY, PROMPTS, answers, ranks_of, started
from tests.tiny_models import save_checkpoint

LIMIT_S = 60


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("nodes") / "llama")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "key"
    path.write_text("a secret of more than thirty-two characters")
    path.chmod(0o600)
    return path


class Node:
    """Node 1, whose ranks are processes and whose watch is a thread."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        given = {"model": str(path), **FEW, **settings, "node_rank": 1}
        engine = resolve(given, context="serve", environ={}).engine
        arguments = msgspec.convert(engine.plugins.arguments["executor.mp"], RanksArguments)
        self.server = NodeServer(engine, arguments, 1)
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.server.run()
        except CoreError as error:
            self.error = error

    def end(self) -> None:
        self.server.stop()
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()


def of_two(key: Path) -> dict[str, Any]:
    shared = {"tensor_parallel_size": 2, "nnodes": 2, "master_port": free_ports(4), "engine_key_file": str(key)}
    return {**shared, "master_addr": "127.0.0.2", "enable_sleep_mode": True}


@contextmanager
def running(path: Path, settings: dict[str, Any]) -> Iterator[LLM]:
    """An engine of two nodes."""
    node = Node(path, settings)
    try:
        llm = LLM(model=str(path), **FEW, **settings)
        yield llm
        ranks_of(llm).close()
    finally:
        node.end()


@pytest.fixture(scope="module")
def pair(llama: Path, key: Path) -> Iterator[tuple[LLM, dict[str, Any]]]:
    settings = of_two(key)
    with running(llama, settings) as llm:
        yield llm, settings


def below() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "core_distributed.rank" in each.cmdline()]


def test_two_nodes_answer_as_one_process(llama: Path, pair: tuple[LLM, dict[str, Any]]) -> None:
    one, (two, _) = started(llama, 1), pair
    for params in (GREEDY, DRAWN):
        assert answers(two, params) == answers(one, params)
    two.sleep(2)
    two.wake_up()
    assert answers(two, GREEDY) == answers(one, GREEDY)


def test_adapters_of_two_nodes(llama: Path, key: Path, tmp_path: Path) -> None:
    """Both nodes read the same path. An adapter that one of them cannot read is in neither."""
    shapes = shapes_of(str(llama))
    paths = [write_adapter(tmp_path / str(seed), shapes, 6, seed, scale=0.2) for seed in range(2)]
    names = [LoRARequest(path.name, lora_path=str(path)) for path in paths]
    with running(llama, of_two(key) | {"enable_lora": True, "max_loras": 2}) as two:
        one = started(llama, 1, enable_lora=True, max_loras=2)
        found = [
            [bits_of(each) for each in llm.generate(PROMPTS[:2], GREEDY, lora_request=names, use_tqdm=False)]
            for llm in (one, two)
        ]
        assert found[0] == found[1]
        with pytest.raises(RequestError, match="nowhere"):
            two.add_lora(LoRARequest("none", 1, "/nowhere/at/all"))
        assert answers(two, GREEDY) == answers(one, GREEDY)


def test_only_the_named_address_listens(pair: tuple[LLM, dict[str, Any]]) -> None:
    _, settings = pair
    port = settings["master_port"]
    listening = [each.laddr for each in psutil.Process().net_connections("tcp") if each.status == "LISTEN"]
    assert {each.ip for each in listening if each.port in (port, port + 1)} == {"127.0.0.2"}
    (child,) = below()
    assert not [each for each in child.net_connections("tcp") if each.status == "LISTEN"]


def test_a_rank_of_another_node_that_raises_fails_the_step_alone(
    pair: tuple[LLM, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    two, _ = pair
    expected, encode, damaged = answers(two, GREEDY), executor._for_others, []

    def without_blocks(plan: Any) -> Any:
        if plan.new and not damaged:
            damaged.append(plan)
            return executor.replace(plan, slots=plan.slots + 1000)
        return encode(plan)

    monkeypatch.setattr(executor, "_for_others", without_blocks)
    assert answers(two, GREEDY) == expected
    (child,) = below()
    assert f"rank 1 (process {child.pid} of node 1, {os.uname().nodename}): " in caplog.text


def test_a_killed_rank_of_another_node_is_named(pair: tuple[LLM, dict[str, Any]]) -> None:
    llm, _ = pair
    (child,) = below()
    child.send_signal(signal.SIGKILL)
    death = rf"Rank 1 of 2 \(process {child.pid} of node 1, {os.uname().nodename}\) was killed by signal 9 \(SIGKILL\) in step"
    with pytest.raises(EngineDeadError, match=death):
        for _ in range(1000):
            answers(llm, GREEDY)


@pytest.mark.slow
@pytest.mark.parametrize("division", [(1, 2), (2, 2)], ids=["stages", "stages of two ranks"])
def test_stages_on_nodes_of_their_own(llama: Path, key: Path, division: tuple[int, int]) -> None:
    tensor, stages = division
    settings = {**of_two(key), "tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
    expected = answers(started(llama, 1), DRAWN)
    with running(llama, settings) as llm:
        assert answers(llm, DRAWN) == expected


@pytest.mark.slow
def test_four_ranks_on_two_nodes(llama: Path, key: Path) -> None:
    expected = answers(started(llama, 1), GREEDY)
    with running(llama, {**of_two(key), "tensor_parallel_size": 4}) as llm:
        assert answers(llm, GREEDY) == expected


@pytest.mark.slow
def test_nodes_divide_keys_by_positions(tmp_path: Path, key: Path) -> None:
    path = context.saved("plain", tmp_path)
    expected = context.answers(started(path, 1, **context.ROOM), GREEDY)
    with running(path, {**of_two(key), **context.ROOM, **context.DIVIDED}) as llm:
        assert context.answers(llm, GREEDY) == expected


@pytest.mark.slow
def test_a_rank_of_another_node_that_cannot_start_says_why(
    llama: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(own: EngineConfig, node: EngineConfig) -> EngineConfig:
        found = config_for(own, node)
        return msgspec.structs.replace(found, model=msgspec.structs.replace(found.model, model="/nowhere"))

    monkeypatch.setattr(opening, "config_for", broken)
    with pytest.raises(CoreError, match=r"Rank 1 could not start: .*nowhere"), running(llama, of_two(key)):
        pass


def test_nodes_that_do_not_fit_are_turned_away(llama: Path) -> None:
    settings = {"tensor_parallel_size": 2, "nnodes": 2, "master_port": free_ports(4), "engine_connect_timeout": 0.6}
    engine = resolve({"model": str(llama), **FEW, **settings}, context="serve", environ={}).engine
    arguments = msgspec.convert(engine.plugins.arguments["executor.mp"], RanksArguments)
    nodes = Nodes(engine, arguments)
    try:
        for wrong, words in (
            ({"dtype": "float32"}, "Its dtype is 'float32', that of node 0 is 'bfloat16'"),
            ({"pipeline_parallel_size": 2}, "Its ranks are 2 x 2 on 2 nodes"),
            ({"enable_lora": True}, "Its enable_lora is True, that of node 0 is False"),
        ):
            node = Node(llama, {**settings, **wrong})
            node.thread.join(LIMIT_S)
            assert f"Node 0 turned this node away: {words}" in str(node.error)
        with pytest.raises(CoreError, match=r"Of 2 nodes, these have not come to 127\.0\.0\.1:\d+ within 0\.6 s: 1\."):
            nodes.wait()
    finally:
        nodes.end()
    node = Node(llama, settings)
    node.thread.join(LIMIT_S)
    assert "No engine has come at 127.0.0.1" in str(node.error)


def test_what_the_public_may_read_of_a_death() -> None:
    names = "(process 7 of node 1, host.example)"
    killed = f"The engine died: Rank 1 of 2 {names} was killed by signal 9 (SIGKILL) in step 5."
    assert of_rank(killed) == "Rank 1 of 2 (process 7 of node 1) was killed by signal 9 (SIGKILL) in step 5"
    cut_off = "Rank 1 of 2 (on node 1) did not answer within 8 s in step 5"
    assert of_rank(f"{cut_off}; its node does not answer either.") == cut_off
    silent = "Node 1 (process 7 of host.example, 10.0.0.2) gave no sign of life for 7.5 s in step 5."
    assert of_rank(silent) == "Node 1 gave no sign of life for 7.5 s in step 5"
    lost = "Node 1 (process 7 of host.example, 10.0.0.2) was lost with its Ray actor in step 5."
    assert of_rank(lost) == "Node 1 was lost with its Ray actor in step 5"
