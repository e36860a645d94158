"""Block tables of a device: they travel as changes, and are those of the host after any history."""

import numpy as np
import pytest
import torch

from core.api.specs import KVGroup
from core.api.step_limits import StepLimits
from core_kit.devices.fake_device import FakeCalls, Watch
from core_runtime.executor.steps.arrays import fill_arrays
from core_runtime.executor.steps.block_tables import BlockTables
from core_runtime.executor.steps.buffers import StepBuffers
from core_runtime.executor.steps.staging import GAP, Staging

BLOCK = 4


class Runtime:
    """Copies of the fake device in both directions. sizes: bytes of each copy to it."""

    def __init__(self, calls: FakeCalls) -> None:
        self.calls = calls
        self.sizes: list[int] = []

    def host_memory(self, nbytes: int) -> torch.Tensor:
        return self.calls.pinned(nbytes)

    def upload(self, device: torch.Tensor, host: torch.Tensor):
        self.sizes.append(host.nbytes)
        self.calls.copy(device, host)
        return self.calls.mark().synchronize

    def download(self, host: torch.Tensor, device: torch.Tensor):
        self.calls.copy(host, device)
        return self.calls.mark().synchronize


class Batch:
    """Sequences that come, grow, change places and leave; a second model shares their blocks.

    lengths: tokens by slot.
    """

    def __init__(self, slots: int, width: int) -> None:
        limits = StepLimits(sequences=slots, tokens=slots * width * BLOCK, logit_rows=slots)
        calls = FakeCalls()
        self.runtime = Runtime(calls)
        self.watch = Watch(calls)
        device = torch.device("cpu")
        groups = [KVGroup("full", (0,)), KVGroup("sliding", (1,), 8), KVGroup("state", (2,), None, 2)]
        self.buffers = StepBuffers(limits, width, device, len(groups), self.runtime, slots, 1)
        self.draft = StepBuffers(limits, width, device, len(groups), self.runtime, beside=self.buffers)
        self.tables = BlockTables(self.buffers, BLOCK, groups)
        self.drafted = BlockTables(self.draft, BLOCK, groups, self.tables)
        self.lengths: dict[int, int] = {}
        self.blocks: dict[int, list[list[int]]] = {}
        self.num_blocks = 0

    def new(self, count: int) -> list[int]:
        self.num_blocks += count
        return list(range(self.num_blocks - count, self.num_blocks))

    def start(self, slot: int, length: int) -> None:
        count = -(-length // BLOCK)
        self.lengths[slot] = length
        self.blocks[slot] = [self.new(count), self.new(count), self.new(2)]
        self.tables.start(slot, self.blocks[slot])

    def grow(self, slot: int, count: int, room: int = 0) -> None:
        """room: tokens beyond the length for which the sequence gets blocks too, as for drafts."""
        self.lengths[slot] += count
        missing = max(-(-(self.lengths[slot] + room) // BLOCK) - len(self.blocks[slot][0]), 0)
        added = [self.new(missing), self.new(missing), []]
        self.tables.append(slot, added)
        for known, more in zip(self.blocks[slot], added, strict=True):
            known += more

    def check(self, order: list[int], tables: BlockTables) -> None:
        """What the device has of a step's sequences is what they have."""
        with self.watch:
            tables.buffers.send()
            for group, table in enumerate(tables.buffers.block_tables):
                for row, slot in enumerate(order):
                    blocks = self.blocks[slot][group]
                    assert table.tensor[row, : len(blocks)].tolist() == blocks

    def fill(self, order: list[int], tables: BlockTables) -> None:
        slots = np.array(order, np.int32)
        computed = np.array([self.lengths[slot] - 1 for slot in order], np.int32)
        fill_arrays(tables, slots, np.ones(len(order), np.int32), computed)


@pytest.mark.parametrize("seed", range(4))
def test_after_any_history_the_device_has_the_hosts_tables(seed: int) -> None:
    random = np.random.default_rng(seed)
    batch = Batch(slots=6, width=12)
    order: list[int] = []
    for _ in range(120):
        changed = not order or random.random() < 0.4
        for slot in range(6):
            if changed and random.random() < 0.4:
                if slot in batch.lengths and random.random() < 0.5:
                    del batch.lengths[slot]
                else:
                    batch.start(slot, int(random.integers(1, 30)))
            elif batch.lengths.get(slot, 12 * BLOCK) < 12 * BLOCK:
                batch.grow(slot, 1, int(random.integers(0, min(2 * BLOCK, 12 * BLOCK - batch.lengths[slot]))))
        still = order and all(slot in batch.lengths for slot in order)
        if changed or not still:
            alive = list(batch.lengths)
            order = random.permutation(alive)[: random.integers(0, len(alive) + 1)].tolist()
            if not order:
                continue
            batch.fill(order, batch.tables)
        else:
            positions = np.array([batch.lengths[slot] - 1 for slot in order])
            batch.tables.advance(np.array(order, np.int32), positions)
        if random.random() < 0.8:  # a step that fails sends nothing
            batch.check(order, batch.tables)
            batch.fill(order, batch.drafted)
            batch.check(order, batch.drafted)
        else:
            order = []


def test_a_prompt_with_more_blocks_than_a_step_has_room_for() -> None:
    batch = Batch(slots=2, width=3000)
    batch.start(1, 3000 * BLOCK - 5)
    batch.start(0, 7)
    batch.fill([1, 0], batch.tables)
    batch.check([1, 0], batch.tables)
    copies = len(batch.runtime.sizes)
    assert copies > 3
    batch.grow(1, 5)
    batch.fill([0, 1], batch.tables)
    batch.check([0, 1], batch.tables)
    assert batch.runtime.sizes[copies:] and max(batch.runtime.sizes[copies:]) < 100_000


def test_only_what_changed_and_small_gaps_are_copied() -> None:
    runtime = Runtime(FakeCalls())
    host = torch.zeros(8 * GAP, dtype=torch.uint8)
    device = torch.ones(8 * GAP, dtype=torch.uint8)
    staging = Staging(host, device, runtime)
    for begin, end in ((5 * GAP, 5 * GAP + 8), (16, 32), (0, 24), (GAP, GAP + 1), (7, 7)):
        staging.changed(begin, end)
    staging.send()
    assert runtime.sizes == [GAP + 1, 8]
    runtime.calls.synchronize()
    assert device[: GAP + 1].sum() == 0 and device[5 * GAP : 5 * GAP + 8].sum() == 0
    assert device.sum() == 7 * GAP - 9
    staging.send()
    assert len(runtime.sizes) == 2
