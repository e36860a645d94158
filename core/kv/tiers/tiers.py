"""The tiers behind the block pool, as one.

Owns: `KVTiers`: what to save when a block is evicted, what to load, and the copies that a plan carries for it.
Never does: decide what is evicted, or copy from or to the device. Called by: the manager; listens to the pool.

An evicted block's values stay in place until the next plan is computed. That plan names the block first, so the worker
hands its bytes back with the result, and only then does the tier have them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from core.api.kv_transfer import KVTransfers, Page
from core.kv.hashing import PrefixKey
from core.kv.integrity import require
from core.kv.observer import CacheObserver
from core.kv.tiers.disk import DiskTier
from core.kv.tiers.host import HostTier

Saved = tuple[int, int, PrefixKey]
SAVED_AT_ONCE = 64


class KVTiers(CacheObserver):
    """Host memory first, then disk; either may be None. num_saved, num_loaded: blocks since the start."""

    def __init__(self, host: HostTier | None = None, disk: DiskTier | None = None) -> None:
        self.host, self.disk = host, disk
        self.num_saved = 0
        self.num_loaded = 0
        self._saves: list[Saved] = []
        self._loads: list[tuple[int, Page]] = []
        self._in_flight: dict[int, list[Saved]] = {}
        self._number = 0

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether some tier has the block (a file may still turn out to be unreadable)."""
        if self.host is not None and self.host.contains(group, key):
            return True
        return self.disk is not None and self.disk.contains(group, key)

    def read(self, group: int, key: PrefixKey) -> Page | None:
        """The block's bytes, or None when no tier has them (any more)."""
        page = None if self.host is None else self.host.read(group, key)
        if page is None and self.disk is not None:
            page = self.disk.read(group, key)
            if page is not None and self.host is not None:
                self.host.write(group, key, page)
        return page

    def load(self, block_id: int, page: Page) -> None:
        """Have the next plan fill a block."""
        self._loads.append((block_id, page))
        self.num_loaded += 1

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """Have the next plan hand an evicted block's bytes back, unless they are here already."""
        if valid and not self.contains(group, key):
            self._saves.append((block_id, group, key))

    def cleared(self) -> None:
        """Forget everything; pages on their way are dropped when they arrive."""
        self.forget_copies()
        for tier in (self.host, self.disk):
            if tier is not None:
                tier.clear()

    def take(self) -> KVTransfers | None:
        """The copies to make before the next step, or None."""
        if not self._saves and not self._loads:
            return None
        saves, loads = self._saves, self._loads
        self._saves, self._loads = [], []
        self._number += 1
        self._in_flight[self._number] = saves
        return KVTransfers(self._number, [block_id for block_id, _, _ in saves], loads)

    def save_all(
        self,
        cached: Iterable[tuple[int, int, PrefixKey]],
        copy: Callable[[KVTransfers], list[Page] | None],
        seconds: float,
    ) -> None:
        """Save the cached blocks (block id, group, key) that the disk lacks, first ones first, for about `seconds`."""
        disk = self.disk
        if disk is None:
            return
        deadline = time.monotonic() + seconds
        self._saves += [entry for entry in cached if not disk.contains(entry[1], entry[2])]
        missing, self._saves = self._saves, []
        for start in range(0, len(missing), SAVED_AT_ONCE):
            if time.monotonic() > deadline:
                return
            self._saves = missing[start : start + SAVED_AT_ONCE]
            transfers = self.take()
            if transfers is not None:
                self.settle(transfers, copy(transfers))
                disk.flush(max(0.0, deadline - time.monotonic()))

    def settle(self, transfers: KVTransfers, pages: list[Page] | None) -> None:
        """Keep the pages that copies brought; None: they were not made."""
        saves = self._in_flight.pop(transfers.number, [])
        for (_, group, key), page in zip(saves, pages or (), strict=False):
            self.num_saved += 1
            if self.host is not None:
                self.host.write(group, key, page)
            if self.disk is not None:
                self.disk.write(group, key, page)

    def forget_copies(self) -> None:
        """The pool starts over: copies that wait or are under way concern nobody."""
        self._saves, self._loads = [], []
        self._in_flight.clear()

    def close(self, timeout_s: float = 10.0) -> None:
        """Finish writing, for so many seconds at most."""
        if self.disk is not None:
            self.disk.close(timeout_s)

    def check_integrity(self, num_blocks: int) -> None:
        """Raise `IntegrityError` unless sizes are right and waiting copies name blocks of the pool."""
        named = [block_id for block_id, _, _ in self._saves] + [block_id for block_id, _ in self._loads]
        require(all(0 < block_id < num_blocks for block_id in named), "tier_copies", "a copy names no block")
        targets = [block_id for block_id, _ in self._loads]
        require(len(set(targets)) == len(targets), "tier_copies", "a block is to be filled twice")
        if self.host is not None:
            self.host.check_integrity()
