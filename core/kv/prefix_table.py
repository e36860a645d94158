"""Table of cached blocks by key.

Owns: `PrefixTable`. Never does: count references, hash, or decide what is evicted. Called by: the block pool, the manager.
"""

from __future__ import annotations

from core.api.kv_transfer import PrefixKey
from core.kv.integrity import require

Entry = tuple[int, PrefixKey]
"""Group and key of a cached block."""


class PrefixTable:
    """Maps for each group a key to at most one block, and each block to at most one (group, key); owned by the pool.

    Each direction has its own table: for each group from digest to block, and from block to entry. blocks: those cached.
    """

    def __init__(self, num_groups: int = 1) -> None:
        self._blocks: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self._keys: dict[int, Entry] = {}
        self.blocks = self._keys.keys()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._keys

    def find(self, key: PrefixKey, group: int = 0) -> int | None:
        """Return the block cached under `key`, or None when there is none or its token ids differ (a collision)."""
        block_id = self._blocks[group].get(key.digest)
        if block_id is None:
            return None
        _, cached = self._keys[block_id]
        # Digests can collide, with xxhash even on purpose, so only equal token ids make a hit.
        return block_id if cached.payload == key.payload else None

    def insert(self, key: PrefixKey, block_id: int, group: int = 0) -> bool:
        """Cache `block_id` under `key`; False, without a change, when the digest or the block is already in the table."""
        blocks = self._blocks[group]
        if key.digest in blocks or block_id in self._keys:
            return False
        blocks[key.digest] = block_id
        self._keys[block_id] = (group, key)
        return True

    def collides(self, key: PrefixKey, group: int = 0) -> bool:
        """Whether another block with other token ids has the same digest."""
        return key.digest in self._blocks[group] and self.find(key, group) is None

    def discard(self, block_id: int) -> Entry:
        """Remove a cached block; returns its group and key."""
        group, key = self._keys.pop(block_id)
        del self._blocks[group][key.digest]
        return group, key

    def entry(self, block_id: int) -> Entry | None:
        """Return group and key of a cached block, or None when it is not cached."""
        return self._keys.get(block_id)

    def entries(self) -> list[tuple[int, int, PrefixKey]]:
        """Return (block id, group, key) of every cached block, as a copy."""
        return [(block_id, group, key) for block_id, (group, key) in self._keys.items()]

    def clear(self) -> None:
        """Remove all blocks; their references are not changed."""
        for blocks in self._blocks:
            blocks.clear()
        self._keys.clear()

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless both directions of the table agree. O(cached blocks)."""
        num_blocks = sum(len(blocks) for blocks in self._blocks)
        require(num_blocks == len(self._keys), "prefix_table", "keys and blocks differ in number")
        for block_id, (group, key) in self._keys.items():
            found = self._blocks[group].get(key.digest)
            require(found == block_id, "prefix_table", f"block {block_id} is not found under its key")
