"""Residency statistics: how long cached blocks stay, idle and wait for reuse.

Owns: `Residency`, three histograms over a sample of blocks. Never does: keep a block that was evicted.
Called by: `KVConnectors`; it is the connector `residency`, whose histograms the statistics carry.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections.abc import Callable

from core.api.kv_transfer import PrefixKey
from core.api.stats import SchedulerStats
from core.kv.connector import KVConnector
from core_kv_connectors.kv_residency import RESIDENCY_BUCKETS

Times = tuple[float, float]
"""Times at which a block was cached and last used."""


class Residency(KVConnector):
    """Histograms of a `sample` of the blocks, in seconds; each row is its counts by bucket, then the sum.

    lifetime: from cached to evicted.
    idle:     from last use to evicted.
    reuse:    between two uses.
    """

    def __init__(self, sample: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._sample = sample
        self._clock = clock
        self._random = random.Random(0)
        self._blocks: dict[int, Times] = {}
        num_columns = len(RESIDENCY_BUCKETS) + 2
        self.lifetime = [0.0] * num_columns
        self.idle = [0.0] * num_columns
        self.reuse = [0.0] * num_columns

    @property
    def rows(self) -> list[list[float]]:
        """Return the histograms, in the order of `RESIDENCY_METRICS`."""
        return [self.lifetime, self.idle, self.reuse]

    def stored(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """Start to observe a block, with probability `sample`."""
        if self._random.random() < self._sample:
            now = self._clock()
            self._blocks[block_id] = (now, now)

    def reused(self, block_id: int) -> None:
        """Record a use of a block."""
        times = self._blocks.get(block_id)
        if times is not None:
            cached, used = times
            now = self._clock()
            _count(self.reuse, now - used)
            self._blocks[block_id] = (cached, now)

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """Record the eviction of a block."""
        times = self._blocks.pop(block_id, None)
        if times is not None:
            cached, used = times
            now = self._clock()
            _count(self.lifetime, now - cached)
            _count(self.idle, now - used)

    def cleared(self) -> None:
        """Stop observing: blocks dropped on request say nothing about eviction."""
        self._blocks.clear()

    def pool_replaced(self) -> None:
        """Stop observing: blocks of a replaced pool were not evicted either."""
        self._blocks.clear()

    def report(self, stats: SchedulerStats) -> None:
        """Add the histograms to the statistics."""
        stats.kv_residency = self.rows


def _count(row: list[float], seconds: float) -> None:
    """Add one duration to a histogram."""
    bucket = bisect_left(RESIDENCY_BUCKETS, seconds)
    row[bucket] += 1
    row[-1] += seconds
