"""The tiers that a configuration asks for, as the KV connector `tiers`.

Owns: `LocalTiers`: opening host memory and disk, again for other weights, and filling the disk in the background. Never does:
keep pages. Called by: the manifest of the connector `tiers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from core.api.config import CacheConfig, EngineConfig
from core.kv.connector import BlockCache, Copy
from core_kv_connectors.block_saver import BlockSaver
from core_kv_connectors.tiers.disk import DiskTier
from core_kv_connectors.tiers.host import HostTier
from core_kv_connectors.tiers.tiers import KVTiers

logger = logging.getLogger(__name__)

LAST_WRITES_S = 1.0
"""Seconds that the disk gets for pages of the previous weights."""


class LocalTiers(KVTiers):
    """Host memory and disk of an engine.

    fingerprint: 32 hex digits over everything besides tokens that values depend on.
    page_bytes:  bytes of one block in all layers of its group.

    Raises ConfigError.
    """

    def __init__(self, config: EngineConfig, fingerprint: Callable[[], str], page_bytes: int) -> None:
        self._page_bytes = page_bytes
        super().__init__(*self._open(config, config.cache, fingerprint))
        self._saver = self._new_saver()

    def use_weights(self, config: EngineConfig, fingerprint: Callable[[], str]) -> None:
        """Keep pages of other weights from now on: host memory starts empty, the disk has another directory.

        A disk that fails is left out until the weights change again, because they are in use already.
        """
        try:
            self.close(LAST_WRITES_S)
            host, disk = self._open(config, config.cache, fingerprint)
        except Exception as error:
            logger.error("The new weights are served without the disk behind the KV cache: %s", error)
            in_memory = msgspec.structs.replace(config.cache, disk_path=None)
            host, disk = self._open(config, in_memory, fingerprint)
        self.put_on(host, disk)
        self._saver = self._new_saver()

    def after_step(self, cache: BlockCache) -> None:
        """Save a little."""
        if self._saver is not None:
            self._saver.after_step(cache)

    def save_idle(self, cache: BlockCache, copy: Copy) -> int | None:
        """Save a little more; see `BlockSaver.save_idle`."""
        return None if self._saver is None else self._saver.save_idle(cache, copy)

    def save_all(self, cache: BlockCache, copy: Copy, seconds: float) -> None:
        """Save what the disk lacks."""
        if self._saver is not None:
            self._saver.save_all(cache, copy, seconds)

    def _open(
        self, config: EngineConfig, cache: CacheConfig, fingerprint: Callable[[], str]
    ) -> tuple[HostTier | None, DiskTier | None]:
        if not cache.enable_prefix_caching:
            return None, None
        checked = config.state_canary is not None
        host = HostTier(cache.host_bytes, checked=checked) if cache.host_bytes else None
        if not cache.disk_path:
            return host, None
        return host, DiskTier(cache.disk_path, fingerprint(), cache.disk_bytes, self._page_bytes)

    def _new_saver(self) -> BlockSaver | None:
        return None if self.disk is None else BlockSaver(self, self.disk, self._page_bytes)
