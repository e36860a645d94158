"""Whose memory weights and KV lie in: the runtime's, told what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from core.config.resolve import resolve
from core.executor.device import ALIGNMENT, CHUNK, Device
from core.executor.worker import Worker


class OlderRuntime:
    """A runtime of contract 1."""

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
    assert runtime.asked == [CHUNK, CHUNK + 5, CHUNK]
    assert [len(one) for one in (first, second, large, after)] == [100, ALIGNMENT + 1, CHUNK + 5, 7]
    device.allocate(50, "kv")
    assert runtime.tags == ["weights"] * 3 + ["kv"]
    assert device.nbytes == {"weights": 100 + ALIGNMENT + 1 + CHUNK + 5 + 7, "kv": 50}


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
