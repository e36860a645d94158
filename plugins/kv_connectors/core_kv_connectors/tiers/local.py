"""The configured tiers, as the KV connector `tiers`.

Owns: `LocalTiers`: opening host memory and disk, reopening them for other weights, and filling the disk in the
background. Never does: keep pages. Called by: the manifest of the connector `tiers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence

from core.api.config import EngineConfig
from core.api.kv_transfer import PrefixKey
from core.kv.connector import BlockCache, Copy, HeldPage
from core_kv_connectors.block_saver import LAST_BYTES, BlockSaver
from core_kv_connectors.tiers.disk import DiskTier
from core_kv_connectors.tiers.host import HostTier
from core_kv_connectors.tiers.page_directory import page_name
from core_kv_connectors.tiers.page_memory import NewPage
from core_kv_connectors.tiers.slow_tier import SlowTier
from core_kv_connectors.tiers.tiers import KVTiers

logger = logging.getLogger(__name__)

LAST_WRITES_S = 1.0
"""Seconds allowed for writing pages of the previous weights."""


class LocalTiers(KVTiers):
    """Host memory and disk of an engine.

    fingerprint: 32 hex digits over everything except tokens that values depend on.
    page_bytes: bytes of one block in all layers of its group.
    new_page: memory for pages that are read, which all processes of the executor see; None: memory of this process.

    Raises ConfigError.
    """

    def __init__(
        self,
        config: EngineConfig,
        fingerprint: Callable[[], str],
        page_bytes: int,
        new_page: NewPage | None = None,
    ) -> None:
        self._page_bytes = max(page_bytes, 1)
        self._new_page = new_page
        super().__init__(self._open_host(config), self._open_disk(config, fingerprint))
        self._saver = self._new_saver()

    def use_weights(self, config: EngineConfig, fingerprint: Callable[[], str]) -> None:
        """Switch to pages of other weights: host memory starts empty, the disk uses another directory.

        A failing disk is left out until the weights change again, because the new weights are already in use.
        """
        disk: SlowTier | None = None
        try:
            self.close(LAST_WRITES_S)
            disk = self._open_disk(config, fingerprint)
        except Exception as error:
            logger.error("The new weights are served without the disk behind the KV cache: %s", error)
        self.put_on(self._open_host(config), disk)
        self._saver = self._new_saver()

    def hold(self, owner: Hashable, pages: Sequence[HeldPage], share: float, seconds: float) -> int | None:
        """Hold all pages on the disk, and in host memory those of blocks that the pool does not hold; None if neither can."""
        held: list[int] = []
        if self.host is not None:
            names = {(group, key.digest) for group, key, in_pool in pages if not in_pool}
            if self.host.hold(owner, names, int(share * self.host.capacity) // self._page_bytes):
                held.append(len(names))
        if self.disk is not None:
            files = {page_name(group, key) for group, key, _ in pages}
            if self.disk.hold(owner, files, share, seconds):
                held.append(len(files))
        return max(held, default=None)

    def release(self, owner: Hashable) -> None:
        """Let pages give way again."""
        self.hold(owner, (), 1.0, 0.0)

    def is_held(self, group: int, key: PrefixKey) -> bool:
        """Whether a pin holds the page of a block, here or not."""
        return any(tier is not None and tier.is_held(group, key) for tier in (self.host, self.disk))

    def after_step(self, cache: BlockCache) -> None:
        """Save a few blocks after a step."""
        if self._saver is not None:
            self._saver.after_step(cache)

    def save_idle(self, cache: BlockCache, copy: Copy) -> int | None:
        """Save more blocks in idle time; see `BlockSaver.save_idle`."""
        return None if self._saver is None else self._saver.save_idle(cache, copy)

    def save_all(self, cache: BlockCache, copy: Copy, seconds: float) -> None:
        """Save all blocks missing on disk, within `seconds`."""
        if self._saver is not None:
            self._saver.save_all(cache, copy, seconds)

    def save_for_sleep(self, cache: BlockCache, copy: Copy, seconds: float, *, keeps_memory: bool) -> None:
        """Save all blocks missing on disk, and fill host memory if it is kept, each within `seconds`."""
        if keeps_memory and self.host is not None:
            limit = max(1, LAST_BYTES // self._page_bytes)
            self.fill_host(cache, copy, self.host.capacity // self._page_bytes, limit, seconds)
        self.save_all(cache, copy, seconds)

    def _open_host(self, config: EngineConfig) -> HostTier | None:
        cache = config.cache
        if not cache.enable_prefix_caching or not cache.host_bytes:
            return None
        return HostTier(cache.host_bytes, checked=config.state_canary is not None, eviction=cache.eviction)

    def _open_disk(self, config: EngineConfig, fingerprint: Callable[[], str]) -> SlowTier | None:
        cache = config.cache
        if not cache.enable_prefix_caching or not cache.disk_path:
            return None
        return DiskTier(cache.disk_path, fingerprint(), cache.disk_bytes, self._page_bytes, new_page=self._new_page)

    def _new_saver(self) -> BlockSaver | None:
        return None if self.disk is None else BlockSaver(self, self.disk, self._page_bytes)
