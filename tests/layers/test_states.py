"""States in blocks of every size are read as they were written, and nothing beside them changes."""

import pytest
import torch

from core_kit.oracles.reference import batch_view
from core_runtime.layers.states import StateStore


@pytest.mark.parametrize("block_bytes, offset", [(7, 0), (12, 0), (16, 0), (16, 1), (64, 4)])
def test_what_is_written_is_read(block_bytes, offset):
    """Whether bytes can be moved in larger units or not. offset: where the layer's bytes begin."""
    memory = torch.zeros(40 * block_bytes + offset, dtype=torch.uint8)
    raw = memory[offset:].view(40, block_bytes)
    store = StateStore(raw, (3, 2))
    tables = [list(range(5, 5 + store.num_blocks)), list(range(30, 30 - store.num_blocks, -1))]
    view = batch_view([1, 1], [4, 9], tables, 1 << 20)
    states = torch.randn(2, 3, 2)
    store.write(view, states)
    assert torch.equal(store.read(view), states)
    changed = raw.any(1).nonzero().flatten().tolist()
    assert changed == sorted(tables[0] + tables[1])
    beginning = batch_view([1, 9], [4, 9], tables, 1 << 20)
    assert torch.equal(store.read(beginning)[1], torch.zeros(3, 2))
