"""Saving of cached blocks to disk before they are evicted.

Owns: `BlockSaver`: it saves a little during steps, more in idle time, the rest at shutdown and before a sleep, so that a
killed engine loses little of its prefixes. During steps it saves as much as costs them a hundredth of their time by the
measured cost of copying and writing. Never does: evict a block, change the order of blocks, or make a request wait for more
than one small copy. Called by: `LocalTiers`.
"""

from __future__ import annotations

import math
import time

from core.kv.connector import BlockCache, Copy
from core_kv_connectors.tiers.slow_tier import SlowTier
from core_kv_connectors.tiers.tiers import KVTiers

STEP_SHARE = 0.01
"""Share of the time of steps that saving may take."""
BYTE_S = STEP_SHARE / (4 << 20)
"""Seconds that copying and writing a byte take, until it has been measured; on two slow processors they took less."""
LONGEST_STEP_S = 1.0
"""A longer pause between two steps was no step."""
IDLE_BYTES = 1 << 20
"""Bytes copied at once in idle time, in about a millisecond, which delays a request that arrives just then."""
IDLE_PAUSE_MS = 5
LAST_BYTES = 32 << 20
"""Bytes copied at once at shutdown."""


class BlockSaver:
    """Feeds the disk of `tiers`. page_bytes: bytes of one block in all layers of its group."""

    def __init__(self, tiers: KVTiers, disk: SlowTier, page_bytes: int) -> None:
        self._tiers = tiers
        self._disk = disk
        self._page_bytes = max(page_bytes, 1)
        self._num_missed = 0
        self._copy_byte_s = BYTE_S
        self._last_step = math.inf
        self._saved_s = self._page_bytes * BYTE_S  # one page at first, before any step has been measured

    def after_step(self, cache: BlockCache) -> None:
        """Let the next step return as many blocks as cost `STEP_SHARE` of the steps' time."""
        now = time.monotonic()
        page_s = self._page_bytes * (self._copy_byte_s + self._disk.write_byte_s)
        most = max(1, IDLE_BYTES // self._page_bytes)
        earned = self._saved_s + STEP_SHARE * min(max(now - self._last_step, 0.0), LONGEST_STEP_S)
        self._last_step = now
        self._saved_s = min(earned, most * page_s)
        num_pages = most if not page_s else int(self._saved_s / page_s)
        if num_pages:
            self._saved_s -= num_pages * page_s
            cache.register_starting()
            self._tiers.save_some(cache, num_pages)

    def save_idle(self, cache: BlockCache, copy: Copy) -> int | None:
        """Save a few blocks while the engine is idle.

        Returns the milliseconds after which to call again if the engine is still idle; None when nothing is left to do.
        """
        self._last_step = math.inf  # the next step begins after idle time, which earns nothing
        if self._tiers.num_missed != self._num_missed:
            self._num_missed = self._tiers.num_missed
            self._tiers.remember(cache)
        if not self._disk.is_ready:
            return max(IDLE_PAUSE_MS, round(self._disk.resting_s * 1000))
        return IDLE_PAUSE_MS if self._save(cache, copy, IDLE_BYTES) else None

    def save_all(self, cache: BlockCache, copy: Copy, seconds: float) -> None:
        """Save the blocks missing on disk, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        self._tiers.remember(cache)
        while self._disk.flush(max(0.0, deadline - time.monotonic())):
            if time.monotonic() > deadline or not self._save(cache, copy, LAST_BYTES):
                return

    def _save(self, cache: BlockCache, copy: Copy, num_bytes: int) -> bool:
        """Copy about `num_bytes` and pass them to the disk; False when nothing was left, or that is not possible now."""
        if not self._disk.is_ready:
            return False
        num_pages = max(1, num_bytes // self._page_bytes)
        num_before = self._tiers.num_saved
        begin = time.monotonic()
        self._tiers.save_some(cache, num_pages)
        # Even when no block was chosen: those chosen after the last step wait for a step that may never come.
        is_copied = cache.copy_now(copy)
        num_saved = self._tiers.num_saved - num_before
        if num_saved:
            self._copy_byte_s = (time.monotonic() - begin) / (num_saved * self._page_bytes)
        return is_copied and (num_saved > 0 or self._tiers.has_unsaved)
