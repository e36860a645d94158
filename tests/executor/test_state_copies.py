"""Copies of states between blocks of the cache, as a plan orders them."""

import pytest
import torch

from core.api.specs import KVGroup
from core.api.step_plan import StateCopy
from core_runtime.executor.cache.kv_memory import KVMemory


class Host:
    def allocate(self, nbytes: int, tag: str) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8)


@pytest.mark.parametrize("block_bytes", [16, 5])
def test_copies_are_made_in_their_order_and_a_whole_state_is_read_before_it_is_written(block_bytes):
    memory = KVMemory(Host(), (KVGroup("full", (0, 1)),), [block_bytes, 2 * block_bytes], 10)
    for layer in (0, 1):
        memory.of_layer(layer)[:] = torch.arange(10, dtype=torch.uint8)[:, None]
    copies = [
        StateCopy([1, 2], [5, 6]),
        StateCopy([5, 6], [6, 5]),
        StateCopy([6], [7]),
        StateCopy([3], [1]),
        StateCopy([4], [1]),
    ]
    memory.copy(copies)
    for layer in (0, 1):
        held = memory.of_layer(layer)
        assert (held == held[:, :1]).all()
        assert held[:, 0].tolist() == [0, 4, 2, 3, 4, 2, 1, 1, 8, 9]
