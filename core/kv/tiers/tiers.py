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

import logging
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
from core.kv.tiers.kv_load import KVLoad
from core.kv.tiers.page_reader import PageReader

logger = logging.getLogger(__name__)

EXAMINED_AT_ONCE = 256
"""Cached blocks that are looked up on disk before anything else gets its turn."""

READER_END_S = 0.5
"""What the page under way gets at the end."""


class Save(NamedTuple):
    """A block whose bytes the worker is to hand back. evicted: it leaves the pool; otherwise it stays cached there."""

    block_id: int
    group: int
    key: PrefixKey
    evicted: bool


class KVTiers(CacheObserver):
    """Host memory first, then disk; either may be None.

    Host memory answers at once, and so do pages that are on their way to the disk. Pages on the disk have to be waited for:
    `start`, then `collect` until it answers True, then `end`.

    num_saved, num_loaded: blocks since the start.
    """

    def __init__(
        self,
        host: HostTier | None = None,
        disk: DiskTier | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host = host
        self.disk = disk
        self._reader = None if disk is None else PageReader(disk, clock)
        self.num_saved = 0
        self.num_loaded = 0
        self._saves: list[Save] = []
        self._loads: list[tuple[int, Page]] = []
        self._in_flight: dict[int, list[Save]] = {}
        self._number = 0
        self._unsaved: OrderedDict[int, tuple[int, PrefixKey]] = OrderedDict()
        self._in_place: dict[int, Save] = {}
        self._num_failed = 0

    @property
    def num_missed(self) -> int:
        """Pages that should have reached the disk and did not, since the start."""
        return self._num_failed + (0 if self.disk is None else self.disk.num_dropped)

    @property
    def has_unsaved(self) -> bool:
        """Whether the disk may lack a cached block."""
        return bool(self._unsaved)

    def has_in_memory(self, group: int, key: PrefixKey) -> bool:
        """Whether `read` has the block's page."""
        if self.host is not None and self.host.contains(group, key):
            return True
        return self.disk is not None and self.disk.find(group, key) is not None

    def read(self, group: int, key: PrefixKey) -> Page | None:
        """The block's page if it is in memory, or None."""
        page = None if self.host is None else self.host.read(group, key)
        if page is None and self.disk is not None:
            page = self.disk.find(group, key)
        return page

    @property
    def can_load(self) -> bool:
        """Whether there is something to wait for: a disk, and one that answers."""
        if self.disk is None or self._reader is None:
            return False
        return self.disk.may_be_read and not self._reader.is_stuck

    def may_load(self, group: int, key: PrefixKey) -> bool:
        """Whether the disk seems to have a block; its page may still turn out to be unreadable."""
        return self.disk is not None and self.disk.contains(group, key)

    def start(self, load: KVLoad) -> None:
        """Have pages read from the disk."""
        if self._reader is not None:
            self._reader.start(load)

    def collect(self, load: KVLoad) -> bool:
        """Whether a load is done, with what has come by then; that is in host memory as well from then on."""
        if self._reader is None:
            return True
        if self._reader.is_late(load):
            self._give_up(load)
        if load.is_done and self.host is not None:
            for (group, index), page in load.pages.items():
                self.host.write(group, load.keys[index], page)
        return load.is_done

    def end(self, load: KVLoad) -> None:
        """The pages of a load have been taken, or nobody waits for them any more."""
        if self._reader is not None:
            self._reader.end(load)

    def wait(self, timeout_s: float) -> None:
        """Return when some load is done, or after `timeout_s` seconds."""
        if self._reader is not None:
            self._reader.wait(timeout_s)

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
            tiers = (self.host, self.disk)
            if any(tier is not None and not tier.contains(group, key) for tier in tiers):
                self._saves.append(Save(block_id, group, key, evicted=True))
        elif in_place is not None:
            self._discard(group, key)

    def cleared(self) -> None:
        """Forget everything; pages on their way are dropped when they arrive."""
        self.forget_copies()  # ends the loads first: none brings back what is deleted then
        for tier in (self.host, self.disk):
            if tier is not None:
                tier.clear()

    def save_some(self, most: int) -> None:
        """Have the next plan hand back up to `most` cached blocks that the disk lacks, unless that has enough to do.

        To be called between steps: what plans under way write is written before the next plan's copies are made.
        """
        disk = self.disk
        if disk is None or not disk.is_ready:
            return
        for _ in range(min(len(self._unsaved), EXAMINED_AT_ONCE)):
            if most <= 0:
                return
            block_id, (group, key) = self._unsaved.popitem(last=False)
            if not disk.contains(group, key):
                save = self._in_place[block_id] = Save(block_id, group, key, evicted=False)
                self._saves.append(save)
                most -= 1

    def remember(self, cached: Iterable[tuple[int, int, PrefixKey]]) -> None:
        """Have `save_some` look at all these cached blocks (block id, group, key) again."""
        for block_id, group, key in cached:
            self._unsaved.setdefault(block_id, (group, key))

    def take(self) -> KVTransfers | None:
        """The copies to make before the next step, or None."""
        if not self._saves and not self._loads:
            return None
        saves, loads = self._saves, self._loads
        self._saves, self._loads = [], []
        self._number += 1
        self._in_flight[self._number] = saves
        return KVTransfers(self._number, [save.block_id for save in saves], loads)

    def settle(self, transfers: KVTransfers, pages: list[Page] | None) -> None:
        """Keep the pages that copies brought; None: they were not made."""
        saves = self._in_flight.pop(transfers.number, [])
        if pages is None:
            self._num_failed += len(saves)
        for save, page in zip(saves, pages or (), strict=False):
            if not save.evicted and self._in_place.get(save.block_id) is not save:
                continue  # the block has changed since
            self.num_saved += 1
            if save.evicted and self.host is not None:
                self.host.write(save.group, save.key, page)
            if self.disk is not None:
                self.disk.write(save.group, save.key, page)

    def forget_copies(self) -> None:
        """The pool starts over: copies and loads that wait or are under way concern nobody."""
        if self._reader is not None:
            self._reader.end_all()
        self._saves, self._loads = [], []
        self._in_flight.clear()
        self._unsaved.clear()
        self._in_place.clear()

    def close(self, timeout_s: float = 10.0) -> None:
        """End reading and finish writing, for so many seconds at most."""
        if self._reader is not None:
            self._reader.close(READER_END_S)
        if self.disk is not None:
            self.disk.close(timeout_s)

    def check_integrity(self, num_blocks: int) -> None:
        """Raise `IntegrityError` unless sizes are right and copies to make name blocks of the pool."""
        named = [save.block_id for save in self._saves] + [block_id for block_id, _ in self._loads]
        named += [*self._unsaved, *self._in_place]
        require(all(0 < block_id < num_blocks for block_id in named), "tier_copies", "a copy names no block")
        targets = [block_id for block_id, _ in self._loads]
        require(len(set(targets)) == len(targets), "tier_copies", "a block is to be filled twice")
        if self.host is not None:
            self.host.check_integrity()

    def _give_up(self, load: KVLoad) -> None:
        """A load took too long. When it is the disk that does not answer, nobody else waits for it for a while."""
        logger.warning("KV pages took too long to load; %d of them came.", len(load.pages))
        if self._reader is not None and self._reader.is_stuck and self.disk is not None:
            self.disk.leave_alone()

    def _discard(self, group: int, key: PrefixKey) -> None:
        """Wrong values may have been saved: nobody gets them, from wherever they are."""
        if self._reader is not None:
            self._reader.forget(group, key)
        if self.host is not None:
            self.host.discard(group, key)
        if self.disk is not None:
            self.disk.discard(group, key)
