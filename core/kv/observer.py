"""Listeners to what happens to cached blocks.

Owns: `CacheObserver`. Never does: anything by itself. Called by: the manager and the block pool; KV connectors
listen.
"""

from __future__ import annotations

from core.api.kv_transfer import PrefixKey


class CacheObserver:
    """Hears of cached blocks; each method does nothing unless it is overridden."""

    def stored(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """A block is cached now. parent: digest of the block before it, None for a first one."""

    def reused(self, block_id: int) -> None:
        """A sequence started with a cached block."""

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """A block is not cached any more. valid: its values are right and still there until the next step."""

    def cleared(self) -> None:
        """All blocks were forgotten."""
