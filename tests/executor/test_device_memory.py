"""Whose memory weights and KV lie in: the runtime's, told what it is for."""

from pathlib import Path

import pytest
import torch

from core_config.resolve import resolve
from core_runtime.executor.device import Device
from core_runtime.executor.reloading.arena import ALIGNMENT, CHUNK
from core_runtime.executor.worker import Worker


class OlderRuntime:
    """A runtime of contract 1."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.asked: list[int] = []

    def allocate(self, nbytes: int) -> torch.Tensor:
        self.asked.append(nbytes)
        return torch.zeros(nbytes, dtype=torch.uint8)


class TaggingRuntime(OlderRuntime):
    """One that keeps what it allocated by tag."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def allocate(self, nbytes: int, tag: str = "kv") -> torch.Tensor:
        self.tags.append(tag)
        return super().allocate(nbytes)


def test_an_arena_reserves_chunks_and_gives_slices_of_them() -> None:
    runtime = TaggingRuntime()
    device = Device(runtime)
    arena = device.weights_arena()
    first, second = arena.take(100), arena.take(ALIGNMENT + 1)
    assert runtime.asked == [CHUNK]
    assert second.data_ptr() - first.data_ptr() == ALIGNMENT
    large = arena.take(CHUNK + 5)
    after = arena.take(7)
    assert runtime.asked == [CHUNK, CHUNK + ALIGNMENT, CHUNK], "chunks are whole pages"
    assert [len(one) for one in (first, second, large, after)] == [100, ALIGNMENT + 1, CHUNK + 5, 7]
    device.allocate(50, "kv")
    assert runtime.tags == ["weights"] * 3 + ["kv"]
    assert device.nbytes == {"weights": 100 + ALIGNMENT + 1 + CHUNK + 5 + 7, "kv": 50}


def test_a_device_loses_no_memory_to_the_ends_of_chunks() -> None:
    """Of the layers of Llama-3-8B, three matrices in four would leave much of a CPU's chunk."""
    runtime = TaggingRuntime()
    runtime.device = torch.device("cuda", 0)
    device = Device(runtime)
    arena = device.weights_arena()
    for _ in range(2):
        for mib in (48, 32, 224, 112):
            arena.take(mib << 20)
    arena.take(100)
    arena.take(100)
    assert sum(runtime.asked) - device.nbytes["weights"] < 2 << 20
    assert len(runtime.asked) == 9, "small weights share a chunk"


def test_places_that_were_given_back_are_taken_again_and_empty_chunks_go() -> None:
    runtime = TaggingRuntime()
    device = Device(runtime)
    arena = device.weights_arena()
    first, second, large = arena.take(100), arena.take(5000), arena.take(CHUNK - 3 * ALIGNMENT)
    first.fill_(7)
    address = first.data_ptr()
    arena.give_back(first)
    assert device.nbytes["weights"] == 5000 + len(large)
    again = arena.take(90)
    assert again.data_ptr() == address
    assert len(again) == 90
    assert not again.any(), "nothing of what lay there is left"
    assert runtime.asked == [CHUNK], "there was room"
    for memory in (again, second, large):
        arena.give_back(memory)
    assert device.nbytes["weights"] == 0
    arena.take(100)
    assert runtime.asked == [CHUNK, CHUNK], "a chunk that nothing lies in was let go"


def test_chunks_whose_places_will_all_be_given_back_get_no_new_ones() -> None:
    runtime = TaggingRuntime()
    device = Device(runtime)
    arena = device.weights_arena()
    half = CHUNK // 2
    kept, going, free, alone = arena.take(half), arena.take(half // 2), arena.take(half // 2), arena.take(100)
    assert runtime.asked == [CHUNK, CHUNK]
    arena.give_back(free)
    arena.stay_with([kept])
    assert arena.take(half // 2).data_ptr() == free.data_ptr(), "this chunk stays anyway"
    newer = arena.take(200)
    assert runtime.asked == [CHUNK] * 3, "the chunk of the lone place will go"
    for memory in (going, alone):
        arena.give_back(memory)
    arena.end_stay()
    assert arena.take(100).data_ptr() - newer.data_ptr() == ALIGNMENT


def test_a_runtime_of_contract_1_is_not_told_the_tag() -> None:
    runtime = OlderRuntime()
    device = Device(runtime)
    assert len(device.allocate(10, "kv")) == 10
    assert len(device.weights_arena().take(3)) == 3
    assert runtime.asked == [10, CHUNK]
    assert device.nbytes == {"kv": 10, "weights": 3}


@pytest.mark.parametrize("settings", [{}, {"dtype": "float32", "numerics": "reference"}])
def test_all_weights_and_the_cache_are_accounted_for(tiny_llama: Path, settings: dict) -> None:
    given = {"model": str(tiny_llama), "max_model_len": 64, "use_tqdm_on_load": False, **settings}
    worker = Worker(resolve(given, context="llm", environ={}).engine)
    try:
        assert worker.device.nbytes["kv"] == worker.kv_nbytes
        matrices = 2 + 4 * len(worker.spec.blocks)
        assert 0 <= worker.device.nbytes["weights"] - worker.weights_nbytes <= 64 * matrices
    finally:
        worker.close()
