"""Blocks of the pool that a worker half reads or writes, or that a load goes on from.

Owns: `HeldBlocks`: their references in the pool, also in a pool that replaces the one they were taken from. Never does: choose
blocks, or know what a half does with them. Called by: `SplitConnector` and its parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from core.kv.block_pool import BlockPool
from core.kv.integrity import require


class HeldBlocks:
    """References to blocks, by block id. Each is one of the pool's pins, so the pool's own checks know it."""

    def __init__(self) -> None:
        self._pool: BlockPool | None = None
        self._held: Counter[int] = Counter()

    def move_to(self, pool: BlockPool, moving: Iterable[int]) -> None:
        """Hold, once each, the blocks that a half moves in another pool of the same memory, from which nothing was taken."""
        wanted = set(moving)
        missing = {block_id for block_id in wanted if block_id not in pool.prefixes}
        pool.pin(sorted(wanted - missing))
        taken: list[int] = []
        while not missing.issubset(taken):
            taken += pool.allocate(1)
        pool.pins.update(missing)
        pool.free([block_id for block_id in reversed(taken) if block_id not in missing])
        self._pool = pool
        self._held = Counter(wanted)

    def take(self, count: int) -> list[int]:
        """Allocate blocks and hold them. The pool has as many free ones."""
        pool = self._of()
        block_ids = pool.allocate(count)
        pool.pins.update(block_ids)
        self._held.update(block_ids)
        return block_ids

    def hold(self, block_id: int) -> None:
        """Hold a cached block, which is then not evicted."""
        self._of().pin([block_id])
        self._held[block_id] += 1

    def join(self, block_ids: Sequence[int]) -> None:
        """Make blocks with one state, of which the first has just been cached, one entry: only the first is still held."""
        pool = self._of()
        rest = Counter(block_ids[1:])
        pool.pins -= rest
        self._held -= rest
        pool.join(block_ids)

    def let_go(self, block_ids: Iterable[int]) -> None:
        """Drop a reference to each block; pass the tail of a prefix first. Blocks that are not held any more are ignored."""
        for block_id in block_ids:
            if self._held[block_id] > 0:
                self._held[block_id] -= 1
                self._of().unpin([block_id])
        self._held = +self._held

    def forget(self) -> None:
        """Hold nothing, after the memory of the pool was released: the pool is replaced as well."""
        self._held = Counter()

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless the pool knows each reference."""
        pins = Counter() if self._pool is None else self._pool.pins
        require(self._held <= pins, "held_blocks", "a block in the hands of a worker half is not pinned")

    def _of(self) -> BlockPool:
        assert self._pool is not None, "a pool is needed before blocks are"
        return self._pool
