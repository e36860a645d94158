"""Copies between the pool and the connectors that the next plan carries.

Owns: `BlockCopies`: blocks to save and to fill, and the saves of steps in flight. Never does: copy, or decide what is saved.
Called by: `KVConnectors` and the manager.

An evicted block's values stay in place until the next plan is computed. That plan names the block among its copies, so the
worker returns its bytes with the result, and only then does a connector have them.
"""

from __future__ import annotations

from typing import NamedTuple

from core.api.kv_transfer import KVTransfers, Page, PrefixKey
from core.kv.connector import KVConnector
from core.kv.integrity import require


class Save(NamedTuple):
    """A block whose bytes the worker is to return.

    number:    1, 2, 3, ...; distinguishes saves of the same block.
    evicted:   whether the block leaves the pool; otherwise it stays cached there.
    receivers: connectors that want the page.
    """

    number: int
    block_id: int
    group: int
    key: PrefixKey
    evicted: bool
    receivers: tuple[KVConnector, ...]


class BlockCopies:
    """Copies to make before the next step, and those in flight.

    num_loaded: number of blocks filled since the start.
    leaving:    group and digest of evicted blocks whose pages have not arrived yet.
    """

    def __init__(self) -> None:
        self.num_loaded = 0
        self.leaving: set[tuple[int, bytes]] = set()
        self._saves: list[Save] = []
        self._loads: list[tuple[int, Page]] = []
        self._in_flight: dict[int, list[Save]] = {}
        self._in_place: dict[int, Save] = {}
        self._num_taken = 0
        self._num_saves = 0

    def load(self, block_id: int, page: Page) -> None:
        """Have the next plan fill a block."""
        self._loads.append((block_id, page))
        self.num_loaded += 1

    def save_evicted(self, block_id: int, group: int, key: PrefixKey, receivers: tuple[KVConnector, ...]) -> None:
        """Have the next plan return the bytes of a block that has just left the pool."""
        self._save(block_id, group, key, receivers, evicted=True)
        self.leaving.add((group, key.digest))

    def save_cached(self, block_id: int, group: int, key: PrefixKey, receiver: KVConnector) -> None:
        """Have the next plan return the bytes of a cached block. Call it between steps: steps under way write first."""
        self._in_place[block_id] = self._save(block_id, group, key, (receiver,), evicted=False)

    def stop_saving(self, block_id: int) -> Save | None:
        """Cancel the `save_cached` of a block that is no longer cached: its page is dropped on arrival. None: there is none."""
        return self._in_place.pop(block_id, None)

    def take(self) -> KVTransfers | None:
        """The copies to make before the next step, or None. Each needs one call of `settle`."""
        if not self._saves and not self._loads:
            return None
        saves = self._saves
        loads = self._loads
        self._saves = []
        self._loads = []
        # By number: results of several steps in flight come back while later copies are collected.
        self._num_taken += 1
        self._in_flight[self._num_taken] = saves
        block_ids = [save.block_id for save in saves]
        return KVTransfers(self._num_taken, block_ids, loads)

    def settle(self, transfers: KVTransfers) -> list[Save]:
        """Return the saves among copies that are done or failed, in the order of their pages."""
        saves = self._in_flight.pop(transfers.number, [])
        self.leaving.difference_update((save.group, save.key.digest) for save in saves if save.evicted)
        return saves

    def is_wanted(self, save: Save) -> bool:
        """Whether a page that arrived is still valid: its block was evicted with it, or has stayed cached since."""
        # Compared with its number: the block may have been cached again and ordered again since.
        return save.evicted or self._in_place.get(save.block_id) == save

    def forget(self) -> None:
        """Drop all copies, waiting or in flight, because the pool starts over."""
        self._saves = []
        self._loads = []
        self._in_flight.clear()
        self.leaving.clear()
        self._in_place.clear()

    def check_integrity(self, num_blocks: int) -> None:
        """Raise `IntegrityError` unless the copies name blocks of the pool, and none is filled twice."""
        targets = [block_id for block_id, _ in self._loads]
        named = [*targets, *(save.block_id for save in self._saves), *self._in_place]
        are_blocks = all(0 < block_id < num_blocks for block_id in named)
        require(are_blocks, "block_copies", "a copy names no block")
        require(len(set(targets)) == len(targets), "block_copies", "a block is to be filled twice")

    def _save(
        self, block_id: int, group: int, key: PrefixKey, receivers: tuple[KVConnector, ...], *, evicted: bool
    ) -> Save:
        self._num_saves += 1
        save = Save(self._num_saves, block_id, group, key, evicted, receivers)
        self._saves.append(save)
        return save
