"""Observers of cached blocks.

Owns: `CacheObserver`. Never does: anything by itself. Called by: the manager, the block registry and the block pool;
implemented by `KVConnectors` and by observers such as the log of cache events.
"""

from __future__ import annotations

from core.api.kv_transfer import PrefixKey


class CacheObserver:
    """Receives events of cached blocks; each method does nothing unless it is overridden."""

    def stored(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """Note a newly cached block. parent: digest of the preceding block, None for a first one."""

    def reused(self, block_id: int) -> None:
        """Note that a sequence started with a cached block."""

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """Note that a block is no longer cached. valid: its values are right and stay in place until the next step."""

    def cleared(self) -> None:
        """Note that no block is cached any more."""
