"""KV blocks between the cache in host memory and pages: many pieces in one native call, or one after the other."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from core.api.kv_transfer import KVTransfers
from core.api.specs import KVGroup
from core_platforms.cpu.runtime import CpuPlatform
from core_runtime.executor.cache.kv_memory import KVMemory
from core_runtime.executor.device import Device

NUM_BLOCKS = 20
SIZES = (5, 24, 12)


@pytest.fixture(params=["native", "plain"])
def memory(request):
    """Three layers of different widths, in one call or one after the other; every byte is another one."""
    runtime = CpuPlatform(1).open("cpu", [])
    device = Device(runtime)
    if request.param == "plain":
        host = SimpleNamespace(device=torch.device("cpu"))
        device = SimpleNamespace(runtime=host, allocate=lambda nbytes, tag: torch.zeros(nbytes, dtype=torch.uint8))
    made = KVMemory(device, (KVGroup("full", (0, 1, 2)),), SIZES, NUM_BLOCKS)
    for layer in range(len(SIZES)):
        blocks = made.of_layer(layer)
        blocks[:] = torch.arange(blocks.numel()).view_as(blocks).add(97 * layer).to(torch.uint8)
    made.prepare_transfers()
    assert (made._pieces is not None) == (request.param == "native")
    yield made
    runtime.close()


def block(memory, block_id):
    return np.concatenate([memory.of_layer(layer)[block_id].numpy() for layer in range(len(SIZES))])


def test_a_page_has_the_bytes_of_its_block_and_goes_back(memory):
    ids = [7, 1, 19, 3]
    before = [block(memory, block_id) for block_id in ids]
    pages = memory.transfer(KVTransfers(1, ids, [])).wait()
    for page, wanted in zip(pages, before, strict=True):
        assert page.tolist() == wanted.tolist()
    others = {block_id: block(memory, block_id) for block_id in (0, 6, 8, 18)}
    targets = [2, 19, 7, 4]
    memory.transfer(KVTransfers(2, [], list(zip(targets, pages, strict=True))))
    for target, wanted in zip(targets, before, strict=True):
        assert block(memory, target).tolist() == wanted.tolist()
    for block_id, wanted in others.items():
        assert block(memory, block_id).tolist() == wanted.tolist()


def test_a_block_is_saved_before_it_is_filled(memory):
    before = block(memory, 5)
    page = np.arange(sum(SIZES), dtype=np.uint8)
    page.flags.writeable = False
    (saved,) = memory.transfer(KVTransfers(1, [5], [(5, page)])).wait()
    assert saved.tolist() == before.tolist() and block(memory, 5).tolist() == page.tolist()


def test_pages_and_blocks_that_do_not_fit_are_refused(memory):
    page = np.zeros(sum(SIZES), np.uint8)
    with pytest.raises(ValueError, match=r"size|broadcast"):
        memory.transfer(KVTransfers(1, [], [(1, page[:-1])]))
    with pytest.raises(IndexError):
        memory.transfer(KVTransfers(1, [], [(NUM_BLOCKS, page)]))
    with pytest.raises(IndexError):
        memory.transfer(KVTransfers(1, [NUM_BLOCKS], []))
