"""Host memory and disk as one KV connector.

Owns: `KVTiers`: the choice of blocks to save, on eviction and in the background. Never does: decide about eviction, or
copy from or to the device. Called by: `KVConnectors`, `BlockSaver`.

Cached blocks that are not evicted are saved to disk as well, each once, what a next turn needs first (`Unsaved`), so that
a killed engine loses little. Their pages go only to the disk. Before a sleep that keeps host memory they go there instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from core.api.kv_load import KVLoad
from core.api.kv_transfer import Page, PrefixKey
from core.api.stats import SchedulerStats
from core.kv.connector import BlockCache, Copy, KVConnector
from core_kv_connectors.tiers.host import HostTier, PageWatcher
from core_kv_connectors.tiers.page_source import PageSource
from core_kv_connectors.tiers.slow_tier import SlowTier
from core_kv_connectors.tiers.unsaved import Block, Unsaved

EXAMINED_AT_ONCE = 256
"""Cached blocks looked up before other work gets its turn."""

READER_END_S = 0.5
"""Seconds allowed at shutdown for a page being read."""


class KVTiers(KVConnector):
    """Host memory and disk; either may be None.

    pages: their content, for look-ups.
    fails_loads: whether a sequence whose pages were there and do not come ends with an error; otherwise it is computed.
    num_saved: blocks saved since the start.
    """

    argument = "kv_offloading_disk_path"
    medium: str = "DISK"
    """The name of its slow storage in KV events."""
    places = ("host", "disk")
    """Names of its memory and its slow storage, as sessions report them."""

    def __init__(
        self,
        host: HostTier | None = None,
        disk: SlowTier | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.fails_loads = False
        self.num_saved = 0
        self._unsaved = Unsaved()
        self._fills_host = False
        self._num_failed = 0
        self._host_watcher: PageWatcher | None = None
        self.host: HostTier | None = None
        self.put_on(host, disk)

    def put_on(self, host: HostTier | None, disk: SlowTier | None) -> None:
        """Use these tiers from now on. The previous ones must have been closed."""
        if self.host is not None and self._host_watcher is not None:
            self.host.clear()  # its watcher is told that no page is there any more
        self.host = host
        if self._host_watcher is not None:
            self.watch_host(self._host_watcher)
        self.disk = disk
        self.pages = PageSource(host, disk, self._clock)
        self._unsaved.clear()

    def watch_host(self, watcher: PageWatcher) -> None:
        """Tell a watcher which pages come to host memory and leave it, also under other weights."""
        self._host_watcher = watcher
        if self.host is not None:
            self.host.watch(watcher)

    def listed(self) -> Iterator[tuple[int, bytes]]:
        """List the pages (group, digest) of the slow storage, for the weights in use; this may take long. Raises OSError."""
        disk = self.disk
        if disk is not None:
            yield from disk.pages()

    @property
    def num_missed(self) -> int:
        """Return the number of pages that should have reached the disk and did not, since the start."""
        num_dropped = 0 if self.disk is None else self.disk.num_dropped
        return self._num_failed + num_dropped

    @property
    def has_unsaved(self) -> bool:
        """Whether the disk may lack a cached block."""
        return len(self._unsaved) > 0

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether a page is in memory."""
        return self.pages.has_in_memory(group, key)

    def get(self, group: int, key: PrefixKey) -> Page | None:
        """Return a page in memory, or None."""
        return self.pages.read(group, key)

    def missing(self, key: PrefixKey) -> str:
        """Return why host memory or disk has no page of a block, where either knows."""
        return next((cause for tier in (self.host, self.disk) if tier is not None and (cause := tier.missing(key))), "")

    def can_load(self) -> bool:
        """Whether there is a disk that answers."""
        return self.pages.answers()

    def may_load(self, group: int, key: PrefixKey) -> bool:
        """Whether the disk seems to have a page."""
        return self.pages.may_load(group, key)

    def start_load(self, load: KVLoad) -> None:
        """Start to read pages from the disk."""
        self.pages.start(load)

    def is_loaded(self, load: KVLoad) -> bool:
        """Whether a load is done; its pages are then in host memory as well."""
        is_loaded = self.pages.collect(load)
        if is_loaded and self.fails_loads:
            why = self.pages.why_incomplete(load)
            if why:
                load.failure = (
                    f"The keys and values of this prompt could not be loaded from {self.places[1]}: {why}. "
                    "kv_load_failure_policy fail ends such requests; recompute computes them."
                )
        return is_loaded

    def end_load(self, load: KVLoad) -> None:
        """Release the memory of a load."""
        self.pages.end(load)

    def wants(self, group: int, key: PrefixKey) -> bool:
        """Whether host memory or disk lacks a page."""
        if self.host is not None and not self.host.contains(group, key):
            return True
        return self.disk is not None and not self.disk.holds(group, key)

    def put(self, group: int, key: PrefixKey, page: Page, *, evicted: bool) -> None:
        """Store a page. While its block is cached, only on disk: in host memory it would be a duplicate."""
        self.num_saved += 1
        if (evicted or self._fills_host) and self.host is not None:
            self.host.write(group, key, page)
        if self.disk is not None and not self._fills_host:
            self.disk.write(group, key, page)

    def lost(self, group: int, key: PrefixKey) -> None:
        """Let the saver examine all cached blocks again."""
        self._num_failed += 1

    def discard(self, group: int, key: PrefixKey) -> None:
        """Delete a page with wrong values."""
        self.pages.discard(group, key)

    def stored(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """Remember a block for `save_some` and `fill_host`."""
        self._unsaved.cached(block_id, group, key, parent)

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """Drop a block that is no longer cached."""
        self._unsaved.removed(block_id, group, key)

    def cleared(self) -> None:
        """Drop all pages and pending blocks."""
        self._unsaved.clear()
        if self.host is not None:
            self.host.clear()
        if self.disk is not None:
            self.disk.clear()

    def pool_replaced(self) -> None:
        """Drop the pending blocks: nothing is cached any more."""
        self.pages.end_all()
        self._unsaved.clear()

    def save_some(self, cache: BlockCache, limit: int) -> None:
        """Let the next plan return up to `limit` cached blocks that are missing on disk, unless the disk is busy."""
        disk = self.disk
        if disk is None or not disk.is_ready:
            return
        num_examined = min(len(self._unsaved), EXAMINED_AT_ONCE)
        for _ in range(num_examined):
            if limit <= 0:
                return
            block = self._unsaved.take()
            if block is None:
                return
            block_id, group, key = block
            if not disk.holds(group, key):
                cache.save(block_id, group, key, self)
                limit -= 1

    def remember(self, cache: BlockCache) -> None:
        """Let `save_some` examine all cached blocks again."""
        self._unsaved.add(cache.cached_blocks())

    def fill_host(self, cache: BlockCache, copy: Copy, room: int, limit: int, seconds: float) -> None:
        """Copy up to `room` cached blocks to host memory, what a next turn needs first; the disk gets none of them.

        limit: blocks copied at once. seconds: time after which no further ones are copied.
        """
        host = self.host
        if host is None:
            return
        deadline = self._clock() + seconds
        self.remember(cache)
        blocks: list[Block] = []
        while len(blocks) < room and (block := self._unsaved.take()) is not None:
            blocks.append(block)
        # Pages that are read now are not those that give way to the missing ones.
        missing = [block for block in blocks if host.read(*block[1:]) is None]
        self._fills_host = True
        while missing and self._clock() <= deadline:
            for block_id, group, key in missing[:limit]:
                cache.save(block_id, group, key, self)
            del missing[:limit]
            if not cache.copy_now(copy):
                break
        self._fills_host = False
        for _, group, key in reversed(blocks):
            host.read(group, key)  # the order in which host memory drops pages: what is needed first goes last

    def report(self, stats: SchedulerStats) -> None:
        """Report the pages saved since the start."""
        stats.tier_saved += self.num_saved

    def drop_memory(self) -> None:
        """Drop all pages in host memory."""
        if self.host is not None:
            self.host.clear()

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop reading and finish writing, for at most `timeout_s` seconds."""
        self.pages.close(min(timeout_s, READER_END_S))
        if self.disk is not None:
            self.disk.close(timeout_s)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless sizes are right."""
        if self.host is not None:
            self.host.check_integrity()
