"""Cached blocks that a disk may lack, in the order in which they are worth saving.

Owns: `Unsaved`. Never does: copy or store a page. Called by: `KVTiers`.

What a next turn needs comes first: the prefix that was cached last, which ends where the newest turn does, then the one
before. Of a prefix the head comes first, because a page is found only when all pages before it are found.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.api.kv_transfer import PrefixKey

Block = tuple[int, int, PrefixKey]
"""Block id, group and key."""

AT_ONCE = 256
"""Blocks of one prefix that are taken before a newer prefix gets its turn."""


class Unsaved:
    """The blocks of one pool that are still to be saved. It knows every cached block, to find the head of a prefix."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[int, PrefixKey]] = {}
        self._parents: dict[int, bytes | None] = {}
        self._ids: dict[tuple[int, bytes], int] = {}
        self._next: list[int] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def cached(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """Add a newly cached block. parent: digest of the preceding block, None for a first one."""
        self._blocks.pop(block_id, None)  # a state is reported again by its next turn, and then is among the newest
        self._blocks[block_id] = (group, key)
        self._parents[block_id] = parent
        self._ids[group, key.digest] = block_id

    def removed(self, block_id: int, group: int, key: PrefixKey) -> None:
        """Drop a block that is no longer cached."""
        self._blocks.pop(block_id, None)
        self._parents.pop(block_id, None)
        self._ids.pop((group, key.digest), None)

    def add(self, blocks: Iterable[Block]) -> None:
        """Add cached blocks again, as older than all others."""
        newer = self._blocks
        self._blocks = {block_id: (group, key) for block_id, group, key in blocks if block_id not in newer}
        self._blocks.update(newer)

    def clear(self) -> None:
        """Drop all blocks: nothing is cached any more."""
        self._blocks.clear()
        self._parents.clear()
        self._ids.clear()
        self._next.clear()

    def take(self) -> Block | None:
        """Remove and return the block that is to be saved next, or None."""
        while self._blocks:
            if not self._next:
                self._next = self._newest_prefix()
            block_id = self._next.pop()
            found = self._blocks.pop(block_id, None)
            if found is not None:
                return block_id, *found
        return None

    def _newest_prefix(self) -> list[int]:
        """Return the unsaved blocks of the newest prefix, its head last; of a long one only the head."""
        newest = next(reversed(self._blocks))
        group, _ = self._blocks[newest]
        block_id: int | None = newest
        prefix: list[int] = []
        while block_id is not None:
            if block_id in self._blocks:
                prefix.append(block_id)
            parent = self._parents.get(block_id)
            block_id = None if parent is None else self._ids.get((group, parent))
        return prefix[-AT_ONCE:]
