"""Saving of cached blocks to disk before they are evicted.

Owns: `BlockSaver`: it saves a little during steps, more in idle time, the rest at shutdown, so that a killed engine
loses little of its prefixes. Never does: evict a block, change the order of blocks, or make a request wait for more
than one small copy. Called by: `LocalTiers`.
"""

from __future__ import annotations

import time

from core.kv.connector import BlockCache, Copy
from core_kv_connectors.tiers.disk import DiskTier
from core_kv_connectors.tiers.tiers import KVTiers

BUSY_BYTES_PER_S = 4 << 20
"""Rate while steps run. Copying and writing that much takes less than a hundredth of the time of two slow processors.
"""
IDLE_BYTES = 1 << 20
"""Bytes copied at once in idle time, in about a millisecond, which delays a request that arrives just then."""
IDLE_PAUSE_MS = 5
LAST_BYTES = 32 << 20
"""Bytes copied at once at shutdown."""


class BlockSaver:
    """Feeds the disk of `tiers`. page_bytes: bytes of one block in all layers of its group."""

    def __init__(self, tiers: KVTiers, disk: DiskTier, page_bytes: int) -> None:
        self._tiers = tiers
        self._disk = disk
        self._page_bytes = max(page_bytes, 1)
        self._next_save = 0.0
        self._num_missed = 0

    def after_step(self, cache: BlockCache) -> None:
        """Let the next step return a block, at the limited rate."""
        now = time.monotonic()
        if now >= self._next_save:
            self._next_save = now + self._page_bytes / BUSY_BYTES_PER_S
            cache.register_starting()
            self._tiers.save_some(cache, 1)

    def save_idle(self, cache: BlockCache, copy: Copy) -> int | None:
        """Save a few blocks while the engine is idle.

        Returns the milliseconds after which to call again if the engine is still idle; None when nothing is left to do.
        """
        if self._tiers.num_missed != self._num_missed:
            self._num_missed = self._tiers.num_missed
            self._tiers.remember(cache.cached_blocks())
        if not self._disk.is_ready:
            return max(IDLE_PAUSE_MS, round(self._disk.resting_s * 1000))
        if not self._tiers.has_unsaved or not self._save(cache, copy, IDLE_BYTES):
            return None
        return IDLE_PAUSE_MS

    def save_all(self, cache: BlockCache, copy: Copy, seconds: float) -> None:
        """Save the blocks missing on disk, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        self._tiers.remember(cache.cached_blocks())
        while True:
            seconds_left = max(0.0, deadline - time.monotonic())
            if not self._disk.flush(seconds_left) or not self._tiers.has_unsaved:
                return
            if time.monotonic() > deadline or not self._save(cache, copy, LAST_BYTES):
                return

    def _save(self, cache: BlockCache, copy: Copy, num_bytes: int) -> bool:
        """Copy about `num_bytes` and pass them to the disk; False when that is not possible now."""
        if not self._disk.is_ready:
            return False
        num_pages = max(1, num_bytes // self._page_bytes)
        self._tiers.save_some(cache, num_pages)
        return cache.copy_now(copy)
