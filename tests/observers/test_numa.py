"""An engine bound to a NUMA node: its threads and its memory, as the system reports them; nodes that are not there."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.api.errors import ConfigError, UserError
from core_config.numa import numa_binding
from core_observers.engine.numa import NumaBinding, nodes_at, nodes_of_new_memory, set_memory_policy
from core_observers.observer_settings import NUMA_BINDING
from core_platforms.cpu import nodes, processors

MAPS = """\
55d734eab000 default file=/usr/bin/cat mapped=2 N0=2 kernelpagesize_kB=4
7f0000000000 bind:1 anon=3 dirty=3 N1=3 kernelpagesize_kB=4
7f0000010000 bind:0-1 anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4
7f0000020000 default
"""


def test_the_nodes_of_an_address_are_those_of_its_mapping() -> None:
    assert nodes_at(0x7F0000000800, MAPS) == {1}
    assert nodes_at(0x7F0000010000, MAPS) == {0, 1}
    assert nodes_at(0x7F0000020010, MAPS) == set()
    assert nodes_at(0x55D734EAB000 - 1, MAPS) == set()


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with two nodes; this process may use the processors 1, 4, 5 and 6."""
    for node, cpus in enumerate(("0-3", "4-7")):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    (tmp_path / "devices/system/node/possible").write_text("0-1\n")
    monkeypatch.setattr(processors, "SYSTEM", tmp_path)
    monkeypatch.setattr("core_config.numa.usable_processors", lambda: [1, 4, 5, 6])


def binding_of(**given: Any) -> Any:
    settings: Any = {"numa_bind": True, "numa_bind_nodes": None, "numa_bind_cpus": None, "device": "cpu", **given}
    return numa_binding(settings)


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ({}, {"nodes": [1], "processors": [4, 5, 6]}),
        ({"numa_bind_nodes": [0]}, {"nodes": [0], "processors": [1]}),
        ({"numa_bind_cpus": ["1,4-5"]}, {"nodes": [0, 1], "processors": [1, 4, 5]}),
        ({"numa_bind_cpus": ["4"], "numa_bind_nodes": [0]}, {"nodes": [0], "processors": [4]}),
        ({"numa_bind": False, "numa_bind_nodes": [7]}, None),
    ],
)
@pytest.mark.usefixtures("two_nodes")
def test_the_arguments_choose_a_node_and_processors(given: dict[str, Any], bound: Any) -> None:
    assert binding_of(**given) == bound


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"numa_bind_nodes": [2]}, "--numa-bind-nodes 2: this machine has no such node, only 0, 1"),
        ({"numa_bind_nodes": [0, 1]}, "--numa-bind-nodes 0 1: the engine is bound as one rank; give one node"),
        ({"numa_bind_cpus": ["0-1"]}, "this process may not use processor 0, only"),
        ({"numa_bind_cpus": ["x"]}, "'x' is not understood; expected processors such as 0-3,8"),
        ({"numa_bind_cpus": ["1", "4"]}, "--numa-bind-cpus 1 4: the engine is bound as one rank; give one list"),
        ({"device": "cuda:0"}, "the node of cuda:0 is not known; give --numa-bind-nodes"),
    ],
)
@pytest.mark.usefixtures("two_nodes")
def test_what_is_not_there_is_refused_by_name(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        binding_of(**given)


def test_a_system_without_nodes_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processors, "SYSTEM", tmp_path)
    assert nodes.numa_nodes() == {}
    with pytest.raises(UserError, match="lists no NUMA nodes"):
        binding_of()


def policy_of_this_thread() -> set[str]:
    """The memory policies of the mappings of this thread, without their addresses."""
    text = Path("/proc/thread-self/numa_maps").read_text(encoding="utf-8", errors="replace")
    return {line.split()[1] for line in text.splitlines()}


def binds_memory() -> bool:
    """Whether the system lets a process choose its nodes, as a container may not."""
    try:
        set_memory_policy([min(nodes.numa_nodes())])
        set_memory_policy(())
    except (OSError, ValueError):
        return False
    return True


needs_nodes = pytest.mark.skipif(not binds_memory(), reason="the system binds no memory")


@needs_nodes
def test_an_engine_and_the_threads_it_starts_are_bound_until_it_ends(tiny_llama: Path) -> None:
    node = min(nodes.numa_nodes())
    cpu = str(processors.usable_processors()[0])
    before = os.sched_getaffinity(0)
    seen: list[Any] = []
    with LLM(str(tiny_llama), max_model_len=64, numa_bind=True, numa_bind_nodes=[node], numa_bind_cpus=[cpu]) as llm:
        assert os.sched_getaffinity(0) == {int(cpu)}
        assert f"bind:{node}" in policy_of_this_thread() and nodes_of_new_memory() == {node}
        thread = threading.Thread(target=lambda: seen.append((os.sched_getaffinity(0), policy_of_this_thread())))
        thread.start()
        thread.join()
        llm.generate("a", SamplingParams(max_tokens=1), use_tqdm=False)
    ((affinity, policies),) = seen
    assert affinity == {int(cpu)} and f"bind:{node}" in policies
    assert os.sched_getaffinity(0) == before
    assert f"bind:{node}" not in policy_of_this_thread()


def test_a_system_that_does_not_bind_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(nodes: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    usable = processors.usable_processors()
    arguments = {NUMA_BINDING: {"nodes": [0], "processors": usable}}
    start: Any = SimpleNamespace(config=SimpleNamespace(plugins=SimpleNamespace(arguments=arguments)))
    monkeypatch.setattr("core_observers.engine.numa.set_memory_policy", refused)
    monkeypatch.setattr(NumaBinding, "close", lambda self: None)
    with pytest.raises(UserError, match="binds no memory to node 0: Operation not permitted; in a container"):
        NumaBinding.open(start)


def test_several_ranks_are_refused(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="--tensor-parallel-size is 2"):
        LLM(str(tiny_llama), numa_bind=True, tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="both place threads"):
        LLM(str(tiny_llama), numa_bind=True, platform_config={"thread_binding": "auto"})
