"""What is compared of cached blocks: states of layers with a state, and of every block the bytes that its layers fill."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core import LLM
from core.api.specs import KVGroup
from core.scheduler.sequence import SequenceState
from core_observers.families.audit_metrics import CLEAN_ANSWERS
from core_runtime.executor.cache.kv_memory import KVMemory
from core_runtime.specs import kv_groups
from tests.audit.repeating import SETTINGS, Engine
from tests.inside import worker_of
from tests.kv.conversations import checkpoint

FAMILIES = (
    "lfm2",
    pytest.param("qwen3_next", marks=pytest.mark.slow),
    pytest.param("mamba2", marks=pytest.mark.slow),
    pytest.param("mamba", marks=pytest.mark.slow),
    pytest.param("jamba", marks=pytest.mark.slow),
    pytest.param("nemotron_h", marks=pytest.mark.slow),
)
"""Short convolutions, gated delta nets, Mamba 2 and 1, and mixtures of these with full attention."""
NUM_BLOCKS = 96
"""Few enough that blocks of states had other contents before."""


@pytest.fixture(scope="module", params=FAMILIES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = checkpoint(request.param, tmp_path_factory.mktemp(request.param) / "model")
    with LLM(str(path), audit_share=1.0, num_gpu_blocks_override=NUM_BLOCKS, **SETTINGS) as llm:
        yield Engine(llm)


def state_of(engine: Engine, answer: SequenceState) -> list[int]:
    """The blocks of the state that is kept after a block of an answer."""
    kv = engine.core.scheduler.kv
    assert kv.snapshots is not None
    edges = range(len(answer.token_ids) // kv.block_size)
    return next(filter(None, (kv.snapshots.find(kv.key(answer, edge)) for edge in edges)))


def used(engine: Engine) -> list[tuple[int, int]]:
    """The ranges of bytes that the first block of a state fills."""
    memory: KVMemory = worker_of(engine.llm).kv_memory
    group = next(index for index, group in enumerate(memory.groups) if group.kind == "state")
    return memory.used_bytes(group)


def test_clean_states_raise_no_alarm_in_blocks_that_others_had(engine: Engine) -> None:
    before = engine.counts
    for seed in range(6):
        engine.run(seed, max_tokens=8 + 5 * seed)
    engine.settle()
    assert engine.new(before) == {CLEAN_ANSWERS: 12}


def test_a_bit_of_a_cached_state_is_found_and_served_no_longer(engine: Engine) -> None:
    engine.settle()
    before = engine.counts
    engine.run_alone(7)
    begin, end = used(engine)[0]
    size = engine.core.executor.page_bytes - 1
    engine.flip(state_of(engine, engine.waiting()[0])[0], (begin + end) / 2 / size)
    engine.settle()
    assert engine.new(before) == {"cached": 1}
    before, hits = engine.counts, engine.core.stats().prefix_hits
    engine.run_alone(7)
    assert engine.core.stats().prefix_hits == hits
    engine.settle()
    assert engine.new(before) == {CLEAN_ANSWERS: 1}


def test_bytes_that_no_layer_fills_say_nothing(engine: Engine) -> None:
    filled = {place for begin, end in used(engine) for place in range(begin, end)}
    size = engine.core.executor.page_bytes
    left = [place for place in range(size) if place not in filled]
    if not left:
        pytest.skip("this family's states fill their blocks")
    engine.settle()
    before = engine.counts
    engine.run_alone(8)
    engine.flip(state_of(engine, engine.waiting()[0])[0], (left[0] + 0.5) / (size - 1))
    engine.settle()
    assert engine.new(before) == {CLEAN_ANSWERS: 1}


def test_groups_of_unequal_size_raise_no_alarm(tiny_gemma3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of the layer with full attention fill half of their bytes; the other half is what sliding layers had there."""
    monkeypatch.setattr(kv_groups, "MAX_GROUPS", 2)
    with LLM(str(tiny_gemma3), audit_share=1.0, num_gpu_blocks_override=60, **SETTINGS) as llm:
        engine = Engine(llm)
        memory: KVMemory = worker_of(llm).kv_memory
        assert [group.layers for group in memory.groups] == [(1,), (0, 2)]
        assert [sum(end - begin for begin, end in memory.used_bytes(group)) for group in (0, 1)] == [
            memory.page_bytes // 2,
            memory.page_bytes,
        ]
        for seed in range(8):
            engine.run(seed, max_tokens=8 + 5 * seed)
        engine.settle()
        assert engine.new({}) == {CLEAN_ANSWERS: 16}


def test_ranges_of_a_state_that_takes_several_blocks() -> None:
    """The state of one layer begins a second block; keys of the first group fill one buffer of two."""
    memory = object.__new__(KVMemory)
    memory.groups = (KVGroup("full", (0,)), KVGroup("state", (1, 2), num_state_blocks=2))
    memory._layer_bytes = (100, 150, 30)
    memory._places = {0: (0, 0, 100), 1: (0, 0, 100), 2: (1, 0, 40)}
    memory._ends = [100, 140]
    assert memory.used_bytes(0) == [(0, 100)]
    assert memory.used_bytes(1, 0) == [(0, 100), (100, 130)]
    assert memory.used_bytes(1, 1) == [(0, 50)]
