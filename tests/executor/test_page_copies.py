"""KV blocks on their way between a device that works late and the host: their bytes, and what waits for whom."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from core.api.kv_transfer import KVTransfers
from core.api.specs import KVGroup
from core_kit.devices.fake_device import FakeCalls, Watch
from core_platforms.cuda.graphs import Graphs
from core_platforms.cuda.runtime import DeviceRuntime
from core_runtime.executor.cache import page_copies
from core_runtime.executor.cache.kv_memory import KVMemory
from core_runtime.executor.device import Device
from core_runtime.layers.kernels import KernelSet

NUM_BLOCKS = 40
LAYERS = (8, 16, 24)


@pytest.fixture
def calls() -> Iterator[FakeCalls]:
    calls = FakeCalls()
    with Watch(calls):
        yield calls


def memory_of(calls: FakeCalls, layer_bytes=LAYERS) -> KVMemory:
    runtime = DeviceRuntime(calls, KernelSet([], "cpu"), Graphs(calls, 0, 0))
    groups = (KVGroup("full", tuple(range(len(layer_bytes)))),)
    return KVMemory(Device(runtime), groups, layer_bytes, NUM_BLOCKS)


def fill(memory: KVMemory, add: int = 0) -> None:
    """Give each block a number of its own, in all layers."""
    for layer in range(len(memory.groups[0].layers)):
        memory.of_layer(layer)[:] = torch.arange(NUM_BLOCKS, dtype=torch.uint8)[:, None] + 50 * layer + add


def page(memory: KVMemory, block_id: int, add: int = 0) -> np.ndarray:
    sizes = [memory.of_layer(layer).shape[1] for layer in range(len(memory.groups[0].layers))]
    return np.concatenate([np.full(size, block_id + 50 * layer + add, np.uint8) for layer, size in enumerate(sizes)])


def test_pages_of_groups_of_different_widths(calls):
    """Layers of a group lie one after the other in the one buffer, and a page is a block of it."""
    runtime = DeviceRuntime(calls, KernelSet([], "cpu"), Graphs(calls, 0, 0))
    groups = (KVGroup("full", (0, 1)), KVGroup("sliding", (2,), 8))
    memory = KVMemory(Device(runtime), groups, [40, 40, 100], NUM_BLOCKS)
    assert memory.page_bytes == 128
    for layer in range(3):
        memory.of_layer(layer)[:] = layer
    memory.of_layer(1)[3] = 7
    (saved,) = memory.transfer(KVTransfers(1, [3], [])).wait()
    memory.transfer(KVTransfers(2, [], [(9, saved)]))
    assert memory.of_layer(1)[[3, 9]].unique().tolist() == [7]
    assert memory.of_layer(2).shape == (NUM_BLOCKS, 100), "the other group's layer is as wide as it needs"


@pytest.mark.parametrize("layer_bytes", [LAYERS, (5, 3)])
@pytest.mark.parametrize("slot_bytes", [1 << 20, 200, 1])
def test_blocks_may_be_overwritten_once_they_are_to_be_saved(calls, monkeypatch, layer_bytes, slot_bytes):
    """In slots that hold all, some, or one of them; saved ones come back although their blocks have new content."""
    monkeypatch.setattr(page_copies, "SLOT_BYTES", slot_bytes)
    memory = memory_of(calls, layer_bytes)
    fill(memory)
    blocks = [3, 39, 1, 17, 20, 2, 30, 5, 9]
    other = [page(memory, block_id, add=7) for block_id in blocks]
    saved = memory.transfer(KVTransfers(1, blocks, list(zip(blocks, other, strict=True))))
    again = memory.transfer(KVTransfers(2, blocks, []))
    fill(memory, add=9)
    for pages, add in ((again.wait(), 7), (saved.wait(), 0)):
        assert all((one == page(memory, id_, add)).all() for one, id_ in zip(pages, blocks, strict=True))


def test_many_blocks_are_one_copy_and_the_host_waits_for_none(calls):
    memory = memory_of(calls)
    memory.prepare_transfers()
    fill(memory)
    blocks = list(range(1, 31))
    loads = [(block_id, page(memory, 39 - block_id)) for block_id in blocks]
    saved = memory.transfer(KVTransfers(1, blocks, loads))
    assert calls.copies_aside == 2
    assert calls.waits == calls.reads.total() == 0
    assert all((one == page(memory, id_)).all() for one, id_ in zip(saved.wait(), blocks, strict=True))
    held = memory.of_layer(2)[1:31]
    assert held[:, 0].tolist() == [139 - block_id for block_id in blocks]


def test_pages_of_a_step_in_flight_are_read_at_its_end(calls):
    """Several steps save; each gets its own, whichever is asked first, and one that failed is in nobody's way."""
    memory = memory_of(calls)
    fill(memory)
    steps = [memory.transfer(KVTransfers(number, [number, number + 10], [])) for number in (1, 2, 3, 4, 5)]
    for number in (4, 1, 5, 2):
        pages = steps[number - 1].wait()
        assert [int(one[0]) for one in pages] == [number, number + 10]


def test_a_copy_waits_for_the_kernels_that_used_its_slot(calls, monkeypatch):
    """The double runs a host's own functions at once, so what a copy is told to wait for is read here."""
    memory = memory_of(calls)
    memory.prepare_transfers()
    told = []
    copy_aside = calls.copy_aside
    monkeypatch.setattr(calls, "mark", lambda mark=calls.mark: told.append("kernels") or mark())
    monkeypatch.setattr(calls, "copy_aside", lambda t, s, after: told.append(after) or copy_aside(t, s, after))
    one = [(1, page(memory, 1))]
    for saves, loads in (([2], []), ([], one), ([3], []), ([], one)):
        memory.transfer(KVTransfers(1, saves, loads))
    copied = [entry for entry in told if entry != "kernels"]
    # the first load's slot was never used; the second takes the one whose blocks a kernel wrote
    assert [after is None for after in copied] == [False, True, False, False]
    assert copied[3] is not copied[2]
