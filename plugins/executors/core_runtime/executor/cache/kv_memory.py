"""The memory of the KV cache.

Owns: the buffers that all groups share, and copies of blocks in the order of the steps. Never does: interpret a block.
Called by: the worker, which runs transfers; `instance.share_cache`, which binds layers to it.

The i-th layer of every group lies in the i-th buffer, so a block id names the same bytes for any group that owns it. Where
layers differ in bytes, all lie in one buffer, those of a group one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.api.config import CacheConfig
from core.api.errors import ConfigError
from core.api.kv_transfer import KVTransfers, Page
from core.api.specs import KVGroup
from core.api.step_plan import StateCopy
from core_kv_connectors.kept.file import lay_out
from core_kv_connectors.shared_pages import PlacedTransfers
from core_runtime.contracts import CopiesAside, CopiesPages, PageCopier
from core_runtime.executor.cache.page_copies import PageCopies, SavedPages
from core_runtime.executor.device import Device
from core_runtime.specs.kv_groups import layer_places, page_bytes, place_bytes


def num_blocks_of(cache: CacheConfig, groups: Sequence[KVGroup], layer_bytes: Sequence[int]) -> int:
    """Return the number of blocks in the pool. layer_bytes: see `KVMemory`. Raises ConfigError when none fits."""
    block_bytes = page_bytes(groups, layer_bytes)
    num_blocks = cache.num_blocks or cache.memory_bytes // block_bytes
    # Block 0 is the null block, which no sequence gets, so one block is as good as none.
    if num_blocks < 2:
        raise ConfigError(
            [
                f"The KV cache of {cache.memory_bytes:,} bytes holds no block of {block_bytes:,} bytes; "
                "raise --kv-cache-memory-bytes or lower --block-size."
            ]
        )
    return num_blocks


class KVMemory:
    """Blocks of equal size for all groups. The worker owns it.

    groups: groups of layers that share a block table.
    layer_bytes: bytes of one block of each layer; in a `state` group, bytes of a sequence's state.
    num_blocks: blocks of the pool.
    file: file in memory in which the blocks outlive this process, and tokens of a block; None: they end with it.
    """

    def __init__(
        self,
        device: Device,
        groups: Sequence[KVGroup],
        layer_bytes: Sequence[int],
        num_blocks: int,
        file: tuple[int, int] | None = None,
    ) -> None:
        self.groups = tuple(groups)
        self.num_blocks = num_blocks
        self._device = device
        self._aside: PageCopies | None = None
        self._pieces: PageCopier | None = None
        self._host: list[NDArray[np.uint8]] = []
        self._buffers: list[Tensor] = []
        self._layer_bytes = tuple(layer_bytes)
        self._places = layer_places(groups, layer_bytes)
        block_sizes = place_bytes(groups, layer_bytes)
        kept = None if file is None else lay_out(file[0], num_blocks, block_sizes, file[1])
        for index, size in enumerate(block_sizes):
            if file is None or kept is None:
                memory = device.allocate(num_blocks * size, "kv")
            else:
                memory = device.allocate_in(file[0], kept.starts[index], num_blocks * size, "kv")
            self._buffers.append(memory.view(num_blocks, size))
        self._ends: list[int] = np.cumsum(block_sizes).tolist()

    @property
    def page_bytes(self) -> int:
        """Bytes of one block in all buffers."""
        return self._ends[-1]

    @property
    def buffer_bytes(self) -> list[int]:
        """Bytes of a block in each buffer."""
        return [int(size) for size in np.diff(self._ends, prepend=0)]

    @property
    def is_level(self) -> bool:
        """Whether every layer has a buffer of a block to itself, rather than a part of one."""
        sizes = self.buffer_bytes
        return all((start, end) == (0, sizes[index]) for index, start, end in self._places.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.num_blocks * self.page_bytes

    @property
    def arena(self) -> tuple[Tensor, ...]:
        """All buffers, uint8 [num_blocks, bytes] each: a block is its row in every one."""
        return tuple(self._buffers)

    def used_bytes(self, group: int, part: int = 0) -> list[tuple[int, int]]:
        """Return the ranges of a page that the layers of a group fill; the other bytes are left by earlier owners of the block.

        part: number of the block within a state, which may take several.
        """
        starts = [0, *self._ends]
        ranges = []
        for layer in self.groups[group].layers:
            index, begin, end = self._places[layer]
            # In each block, a state continues where it filled the previous one.
            filled = min(self._layer_bytes[layer] - part * (end - begin), end - begin)
            if filled > 0:
                ranges.append((starts[index] + begin, starts[index] + begin + filled))
        return ranges

    def group_of_layer(self, layer: int) -> int:
        """Return the index of a layer's group."""
        holders = [index for index, group in enumerate(self.groups) if layer in group.layers]
        return holders[0]

    def of_layer(self, layer: int) -> Tensor:
        """Return the blocks of a layer, uint8 [num_blocks, block bytes]: a buffer, or a part of its columns."""
        index, start, end = self._places[layer]
        return self._buffers[index][:, start:end]

    def prepare_transfers(self) -> None:
        """Allocate what transfers need, so that the first one does not wait for it."""
        runtime = self._device.runtime
        if self._aside is not None or self._pieces is not None or self._host:
            return
        if isinstance(runtime, CopiesAside):
            self._aside = PageCopies(self._buffers, runtime)
            return
        if isinstance(runtime, CopiesPages):
            self._pieces = runtime.page_copies(self._buffers)
        if self._pieces is None and self._buffers[0].is_cpu:
            # A copy takes several times as long in torch as in numpy, and a block has one for each buffer.
            self._host = [buffer.numpy() for buffer in self._buffers]

    def transfer(self, transfers: KVTransfers, copies: Sequence[StateCopy] = ()) -> SavedPages:
        """Save blocks, copy states, then load pages, as seen by kernels called later. Returns the saved pages.

        They lie where `PlacedTransfers.into` says, otherwise in new memory.
        """
        self.prepare_transfers()
        into = transfers.into if isinstance(transfers, PlacedTransfers) else self._new_pages(len(transfers.saves))
        # Saves come first and loads last: a copy or a load may overwrite a block that is saved in the same step, and a load one
        # from which a state is copied.
        if self._aside is not None:
            saved = self._aside.save(transfers.saves, into)
            self.copy(copies)
            self._aside.load(transfers.loads)
            return saved
        pieces = self._pieces
        if pieces is not None:
            pieces.save(transfers.saves, into)
            self.copy(copies)
            pieces.load(transfers.loads)
            return SavedPages(into)
        for block_id, page in zip(transfers.saves, into, strict=True):
            self._read(block_id, page)
        self.copy(copies)
        for block_id, page in transfers.loads:
            self._write(block_id, page)
        return SavedPages(into)

    def copy(self, copies: Sequence[StateCopy]) -> None:
        """Copy blocks in all buffers, in the order of `copies`."""
        for sources, targets in _together(copies):
            for buffer in self._buffers:
                # copying 8-byte numbers is several times as fast as copying single bytes
                rows = buffer if buffer.shape[1] % 8 else buffer.view(torch.int64)
                device = rows.device
                # All rows are read before any is written.
                read = rows.index_select(0, torch.tensor(sources, device=device))
                rows.index_copy_(0, torch.tensor(targets, device=device), read)

    def _new_pages(self, count: int) -> list[Page]:
        return [np.empty(self.page_bytes, np.uint8) for _ in range(count)]

    def _read(self, block_id: int, page: Page) -> None:
        if self._host:
            np.concatenate([rows[block_id] for rows in self._host], out=page)
            return
        target = torch.from_numpy(page)
        start = 0
        for buffer, end in zip(self._buffers, self._ends, strict=True):
            target[start:end].copy_(buffer[block_id])
            start = end

    def _write(self, block_id: int, page: Page) -> None:
        source: Any = page
        if not self._host:
            source = torch.from_numpy(
                page if page.flags.writeable else page.copy()
            )  # torch warns about read-only arrays
        buffers: Sequence[Any] = self._host or self._buffers
        start = 0
        for buffer, end in zip(buffers, self._ends, strict=True):
            buffer[block_id] = source[start:end]
            start = end


def _together(copies: Sequence[StateCopy]) -> Iterator[StateCopy]:
    """Batch copies: one that reads or writes a block written by an earlier one starts a new batch."""
    sources: list[int] = []
    targets: list[int] = []
    written: set[int] = set()
    for copy in copies:
        if not written.isdisjoint(copy.sources) or not written.isdisjoint(copy.targets):
            yield StateCopy(sources, targets)
            sources = []
            targets = []
            written = set()
        sources += copy.sources
        targets += copy.targets
        written.update(copy.targets)
    if targets:
        yield StateCopy(sources, targets)
