"""The tiers behind the block pool, as one.

Owns: `KVTiers`: what to save, when a block is evicted and in the background, what to load, and the copies that a plan
carries for it. Never does: decide what is evicted, or copy from or to the device. Called by: the manager and
`KVServices`; listens to the pool.

An evicted block's values stay in place until the next plan is computed. That plan names the block first, so the worker
hands its bytes back with the result, and only then does the tier have them.

Cached blocks that nobody evicts are saved to disk as well, each once, in the order in which they were cached, so that a
prefix' head comes before its tail and an engine that is killed loses little. Their page goes nowhere but to the disk.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from core.api.kv_transfer import KVTransfers, Page
from core.kv.hashing import PrefixKey
from core.kv.integrity import require
from core.kv.observer import CacheObserver
from core.kv.tiers.disk import DiskTier
from core.kv.tiers.host import HostTier
from core.kv.tiers.page_source import PageSource

EXAMINED_AT_ONCE = 256
"""Cached blocks that are looked up on disk before anything else gets its turn."""

READER_END_S = 0.5
"""Seconds that a page which is being read gets at the end."""


class Save(NamedTuple):
    """A block whose bytes the worker is to hand back.

    number:  1, 2, 3, ...: tells apart saves of one block.
    evicted: it leaves the pool; otherwise it stays cached there.
    """

    number: int
    block_id: int
    group: int
    key: PrefixKey
    evicted: bool


class KVTiers(CacheObserver):
    """Host memory and disk; either may be None.

    pages: where a look-up finds what they have.
    num_saved: blocks since the start.
    num_loaded: blocks since the start.
    """

    def __init__(
        self,
        host: HostTier | None = None,
        disk: DiskTier | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host = host
        self.disk = disk
        self.pages = PageSource(host, disk, clock)
        self.num_saved = 0
        self.num_loaded = 0
        self._saves: list[Save] = []
        self._loads: list[tuple[int, Page]] = []
        self._in_flight: dict[int, list[Save]] = {}
        self._num_taken = 0
        self._num_saves = 0
        self._unsaved: OrderedDict[int, tuple[int, PrefixKey]] = OrderedDict()
        self._in_place: dict[int, Save] = {}
        self._num_failed = 0

    @property
    def num_missed(self) -> int:
        """Pages that should have reached the disk and did not, since the start."""
        num_dropped = 0 if self.disk is None else self.disk.num_dropped
        return self._num_failed + num_dropped

    @property
    def has_unsaved(self) -> bool:
        """Whether the disk may lack a cached block."""
        return bool(self._unsaved)

    def load(self, block_id: int, page: Page) -> None:
        """Have the next plan fill a block."""
        self._loads.append((block_id, page))
        self.num_loaded += 1

    def stored(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """Remember a block for `save_some`."""
        if self.disk is not None:
            self._unsaved[block_id] = (group, key)

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """Have the next plan hand an evicted block's bytes back, unless they are here already.

        Wrong values that were saved while the block was cached are deleted.
        """
        self._unsaved.pop(block_id, None)
        in_place = self._in_place.pop(block_id, None)
        if valid:
            if self._is_missing_somewhere(group, key):
                self._save(block_id, group, key, evicted=True)
        elif in_place is not None:
            self.pages.discard(group, key)

    def cleared(self) -> None:
        """Forget everything; pages on their way are dropped when they arrive."""
        self.forget_copies()  # ends the loads first: none brings back what is deleted then
        if self.host is not None:
            self.host.clear()
        if self.disk is not None:
            self.disk.clear()

    def save_some(self, most: int) -> None:
        """Have the next plan hand back up to `most` cached blocks that the disk lacks, unless that has enough to do.

        To be called between steps: what plans under way write is written before the next plan's copies are made.
        """
        disk = self.disk
        if disk is None or not disk.is_ready:
            return
        num_examined = min(len(self._unsaved), EXAMINED_AT_ONCE)
        for _ in range(num_examined):
            if most <= 0:
                return
            block_id, (group, key) = self._unsaved.popitem(last=False)
            if not disk.contains(group, key):
                self._in_place[block_id] = self._save(block_id, group, key, evicted=False)
                most -= 1

    def remember(self, cached: Iterable[tuple[int, int, PrefixKey]]) -> None:
        """Have `save_some` look at all these cached blocks (block id, group, key) again."""
        for block_id, group, key in cached:
            self._unsaved.setdefault(block_id, (group, key))

    def take(self) -> KVTransfers | None:
        """The copies to make before the next step, or None."""
        if not self._saves and not self._loads:
            return None
        saves = self._saves
        loads = self._loads
        self._saves = []
        self._loads = []
        self._num_taken += 1
        self._in_flight[self._num_taken] = saves
        block_ids = [save.block_id for save in saves]
        return KVTransfers(self._num_taken, block_ids, loads)

    def settle(self, transfers: KVTransfers, pages: list[Page] | None) -> None:
        """Keep the pages that copies brought; None: they were not made."""
        saves = self._in_flight.pop(transfers.number, [])
        if pages is None:
            self._num_failed += len(saves)
            return
        for save, page in zip(saves, pages, strict=False):
            is_still_cached = self._in_place.get(save.block_id) == save
            if save.evicted or is_still_cached:
                self._keep(save, page)

    def forget_copies(self) -> None:
        """The pool starts over: copies and loads that wait or are under way concern nobody."""
        self.pages.end_all()
        self._saves = []
        self._loads = []
        self._in_flight.clear()
        self._unsaved.clear()
        self._in_place.clear()

    def close(self, timeout_s: float = 10.0) -> None:
        """End reading and finish writing, for so many seconds at most."""
        self.pages.close(min(timeout_s, READER_END_S))
        if self.disk is not None:
            self.disk.close(timeout_s)

    def check_integrity(self, num_blocks: int) -> None:
        """Raise `IntegrityError` unless sizes are right and copies to make name blocks of the pool."""
        targets = [block_id for block_id, _ in self._loads]
        sources = [save.block_id for save in self._saves]
        named = [*targets, *sources, *self._unsaved, *self._in_place]
        are_blocks = all(0 < block_id < num_blocks for block_id in named)
        are_different = len(set(targets)) == len(targets)
        require(are_blocks, "tier_copies", "a copy names no block")
        require(are_different, "tier_copies", "a block is to be filled twice")
        if self.host is not None:
            self.host.check_integrity()

    def _is_missing_somewhere(self, group: int, key: PrefixKey) -> bool:
        if self.host is not None and not self.host.contains(group, key):
            return True
        return self.disk is not None and not self.disk.contains(group, key)

    def _save(self, block_id: int, group: int, key: PrefixKey, *, evicted: bool) -> Save:
        self._num_saves += 1
        save = Save(self._num_saves, block_id, group, key, evicted)
        self._saves.append(save)
        return save

    def _keep(self, save: Save, page: Page) -> None:
        self.num_saved += 1
        if save.evicted and self.host is not None:
            self.host.write(save.group, save.key, page)
        if self.disk is not None:
            self.disk.write(save.group, save.key, page)
