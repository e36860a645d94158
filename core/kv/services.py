"""The surroundings of an engine's KV manager: tiers, events, residency.

Owns: `KVServices`, built from a configuration, fed once a step and in idle time, closed with the engine. Never does:
allocate blocks.
Called by: the engine core; the scheduler hands its parts to the manager.
"""

from __future__ import annotations

import logging

import msgspec

from core.api.config import CacheConfig, EngineConfig
from core.api.messages import SchedulerStats
from core.kv.block_saver import BlockSaver, Copy
from core.kv.event_publisher import EventPublisher
from core.kv.events import EventLog
from core.kv.manager import KVManager
from core.kv.observer import CacheObserver
from core.kv.residency import Residency
from core.kv.tiers.disk import DiskTier
from core.kv.tiers.fingerprint import fingerprint
from core.kv.tiers.host import HostTier
from core.kv.tiers.tiers import KVTiers

logger = logging.getLogger(__name__)

LAST_WRITES_S = 1.0
"""Seconds that the disk gets for pages under way when everything else is done."""


class KVServices:
    """Everything around one KV manager.

    tiers:     None without any.
    saver:     None without a disk.
    events:    None when nobody is told.
    publisher: the same.
    residency: None when it is not measured.
    """

    def __init__(self, cache: CacheConfig, tiers: KVTiers | None = None, saver: BlockSaver | None = None) -> None:
        self.tiers = tiers
        self.saver = saver
        self.events = EventLog(cache.block_size) if cache.events else None
        self.publisher = EventPublisher(cache.events) if cache.events else None
        self.residency = Residency(cache.metrics_sample) if cache.metrics_sample else None

    @classmethod
    def open(cls, config: EngineConfig, numerics: str, page_bytes: int) -> KVServices:
        """Everything that the configuration asks for.

        numerics:   what results depend on.
        page_bytes: of one block, in all layers of its group.

        Raises ConfigError.
        """
        return cls(config.cache, *_open_tiers(config, numerics, page_bytes))

    def use_weights(self, config: EngineConfig, numerics: str, page_bytes: int) -> None:
        """From now on blocks are those of other weights: no tier has any of them, unless such weights were in use before.

        A manager that was made before must not be used any more. A disk that fails is done without until the next change,
        since the weights are in use already. Arguments: as for `open`.
        """
        before = self.tiers
        self.tiers, self.saver = None, None
        try:
            if before is not None:
                before.close(LAST_WRITES_S)
            self.tiers, self.saver = _open_tiers(config, numerics, page_bytes)
        except Exception as error:
            logger.error("The new weights are served without the disk behind the KV cache: %s", error)
            in_memory = msgspec.structs.replace(config.cache, disk_path=None)
            config = msgspec.structs.replace(config, cache=in_memory)
            self.tiers, self.saver = _open_tiers(config, numerics, page_bytes)

    def drop_host_pages(self) -> None:
        """Forget what lies in host memory."""
        if self.tiers is not None and self.tiers.host is not None:
            self.tiers.host.clear()

    @property
    def observers(self) -> list[CacheObserver]:
        """The parts that listen to the manager; it adds the tiers by itself."""
        found: list[CacheObserver] = []
        if self.events is not None:
            found.append(self.events)
        if self.residency is not None:
            found.append(self.residency)
        return found

    def after_step(self, kv: KVManager) -> None:
        """Tell of what a step changed, and save a little of it."""
        if self.events is not None and self.publisher is not None:
            kv.register_starting()
            batch = self.events.take()
            if batch is not None:
                self.publisher.publish(batch)
        if self.saver is not None:
            self.saver.after_step(kv)

    def save_idle(self, kv: KVManager, copy: Copy) -> int | None:
        """Nobody waits: save a little more; see `BlockSaver.save_idle`."""
        if self.saver is None:
            return None
        return self.saver.save_idle(kv, copy)

    def report(self, stats: SchedulerStats) -> None:
        """Add what is measured here."""
        if self.tiers is not None:
            stats.tier_saved = self.tiers.num_saved
        if self.residency is not None:
            stats.kv_residency = self.residency.rows

    def close(self, kv: KVManager, copy: Copy, seconds: float) -> None:
        """Save what a disk tier lacks, as far as `seconds` last, and end the threads."""
        if self.saver is not None and kv.tiers is not None:
            self.saver.save_all(kv, copy, seconds)
        if self.tiers is not None:
            self.tiers.close(LAST_WRITES_S)
        if self.publisher is not None:
            self.publisher.close()


def _open_tiers(config: EngineConfig, numerics: str, page_bytes: int) -> tuple[KVTiers | None, BlockSaver | None]:
    """The tiers that the configuration asks for, and what fills a disk. Raises ConfigError."""
    cache = config.cache
    if not cache.enable_prefix_caching:
        return None, None
    checked = config.state_canary is not None
    host = HostTier(cache.host_bytes, checked=checked) if cache.host_bytes else None
    if cache.disk_path:
        name = fingerprint(config, numerics)
        disk = DiskTier(cache.disk_path, name, cache.disk_bytes, page_bytes)
        tiers = KVTiers(host, disk)
        return tiers, BlockSaver(tiers, disk, page_bytes)
    return (None if host is None else KVTiers(host)), None
