"""The pool of all blocks of the KV cache: free, in use, or cached and evictable.

Owns: reference counts, the free blocks and the prefix table. Never does: know sequences or tokens.
Called by: the manager.

Block 0 is the null block: it pads block tables and is never allocated. Every other block is in exactly one place:

    in use    reference count > 0 (cached in the prefix table or not)
    evictable reference count 0 but cached: in the order of --kv-eviction
    spare     reference count 0 and not cached: a stack
    fresh     never used: all ids from `_num_touched` on; such a block takes no memory and no time at creation

Allocation takes spare blocks, then fresh ones, and evicts only when there are none of either. Blocks that were joined (those
of a state) are one entry of table and order, the first, and are evicted together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from core.api.errors import ConfigError
from core.api.kv_transfer import PrefixKey
from core.kv.connectors import KVConnectors
from core.kv.eviction import load_order
from core.kv.integrity import IntegrityError, require
from core.kv.prefix_table import PrefixTable

NULL_BLOCK = 0
COLUMN_STEP = 4096


class BlockPool:
    """Blocks 0 .. num_blocks - 1; allocate, touch and free cost O(1) a block, independent of the pool's size.

    eviction:  name of the order in which cached blocks give way.
    share:     fraction of the blocks that a tenant may have cached while others need room.

    num_free:  number of blocks that can be allocated now, evictable ones included.
    prefixes:  the cached blocks by key.
    observers: receive the blocks that stop being cached.
    pending:   blocks that the next plan's copies have yet to fill.
    pins:      references that no sequence holds, by cached block.
    """

    def __init__(self, num_blocks: int, num_groups: int = 1, *, eviction: str = "lru", share: float = 1.0) -> None:
        if num_blocks < 2:
            raise ConfigError(
                [f"The KV cache has {num_blocks} blocks; expected at least 2 (one is reserved). Give it more memory."]
            )
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self.prefixes = PrefixTable(num_groups)
        self.observers: tuple[KVConnectors, ...] = ()
        self.pending: set[int] = set()
        self.pins: Counter[int] = Counter()
        self._joined: dict[int, list[int]] = {}
        self._num_touched = 1
        self._spare: list[int] = []
        self._references = [0]
        self._evictable = load_order(eviction, int(share * self.capacity) if share < 1 else None)
        self.was_over_share = self._evictable.was_over_share

    @property
    def capacity(self) -> int:
        """Blocks that can be in use at once."""
        return self.num_blocks - 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with one reference each. Raises IntegrityError when too few are free."""
        if count > self.num_free:
            raise IntegrityError("allocation", f"{count} blocks were asked for, {self.num_free} are free")
        self.num_free -= count
        spare = self._spare
        # The usual case of a decode, without a slice and a loop.
        if count == 1 and spare:
            self._references[spare[-1]] = 1
            return [spare.pop()]
        keep = max(len(spare) - count, 0)
        block_ids = spare[keep:][::-1]
        del spare[keep:]
        block_ids += self._take_fresh(count - len(block_ids))
        while len(block_ids) < count:
            block_ids += self._evict_oldest()
        spare += block_ids[count:]  # the rest of a state
        del block_ids[count:]
        references = self._references
        for block_id in block_ids:
            references[block_id] = 1
        return block_ids

    def touch(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each of these cached or used blocks."""
        references = self._references
        for block_id in block_ids:
            # Without a user it is evictable and counts as free; with one it is neither.
            if references[block_id] == 0:
                self._evictable.remove(block_id)
                self.num_free -= 1 + len(self._joined.get(block_id, ()))
            references[block_id] += 1

    def hit(self, block_ids: Iterable[int], worth: float) -> None:
        """Note that a sequence found these cached blocks, which it has touched. worth: see `core.kv.eviction`."""
        for block_id in block_ids:
            self._evictable.hit(block_id, worth)

    def free(self, block_ids: Iterable[int]) -> None:
        """Drop one reference from each block, in the order of their later eviction: pass the tail of a prefix first."""
        references = self._references
        cached, push = self.prefixes.blocks, self._evictable.push  # a call less for each block
        spare = self._spare
        for block_id in block_ids:
            count = references[block_id] - 1
            if count < 0:
                raise IntegrityError("reference_counts", f"block {block_id} is freed but not in use")
            references[block_id] = count
            if count == 0:
                if block_id in cached:
                    self.num_free += 1 + len(self._joined.get(block_id, ()))
                    push(block_id)
                else:
                    self.num_free += 1
                    spare.append(block_id)

    def pin(self, block_ids: Sequence[int]) -> None:
        """Add one reference to each of these cached blocks, so that it is not evicted until `unpin`."""
        self.touch(block_ids)
        self.pins.update(block_ids)

    def unpin(self, block_ids: Iterable[int]) -> None:
        """Drop the reference of a `pin` from each block."""
        for block_id in block_ids:
            self.pins[block_id] -= 1
            # A state that was found to be wrong meanwhile: its other blocks have no reference of their own.
            rest = [] if block_id in self.prefixes or self.pins[block_id] else self._joined.pop(block_id, [])
            self.free((block_id,))
            self.num_free += len(rest)
            self._spare += rest
        self.pins = +self.pins  # without the blocks whose count is 0

    def cache(
        self, key: PrefixKey, block_id: int, group: int = 0, *, tenant: str = "", worth: float = 1.0, size: int = 1
    ) -> bool:
        """Cache a block in use under `key`; False when the key has a block already, which stays.

        tenant: whose share it counts in; empty: in none. size: number of blocks, with those that `join` is given next.
        """
        if not self.prefixes.insert(key, block_id, group):
            return False
        self._evictable.cached(block_id, (group, key.digest), worth, tenant, size)
        return True

    def join(self, block_ids: Sequence[int]) -> None:
        """Make the other blocks part of the first: all were just allocated, and it has just been cached."""
        first, *rest = block_ids
        for block_id in rest:
            self._references[block_id] = 0
        self._joined[first] = rest

    def parts(self, block_id: int) -> list[int]:
        """Return a cached block and the blocks joined to it."""
        return [block_id, *self._joined.get(block_id, ())]

    def uncache(self, block_id: int) -> None:
        """Remove a block with wrong values from the cache, if it is cached. One with joined blocks has no user but pins."""
        if block_id in self.prefixes:
            is_free = self._references[block_id] == 0
            if is_free:
                self._evictable.remove(block_id)
            self._evictable.forget(block_id)
            block_ids = self._discard(block_id, 1.0, valid=False)
            if is_free:
                self._spare += block_ids
            elif len(block_ids) > 1:  # pinned
                self._joined[block_id] = block_ids[1:]

    def num_evictable(self, block_ids: Iterable[int]) -> int:
        """Return how many of these cached blocks count in `num_free` and will leave it with a `touch`."""
        references = self._references
        return sum(references[block_id] == 0 for block_id in block_ids)

    def reset(self) -> bool:
        """Drop all cached prefixes; False, and no change, while any block is in use."""
        if self.num_free != self.capacity:
            return False
        self.prefixes.clear()
        self._joined.clear()
        # Descending, because the stack is popped from its end: low ids are used again first.
        self._spare = list(range(self._num_touched - 1, NULL_BLOCK, -1))
        self._evictable.clear()
        return True

    def _take_fresh(self, count: int) -> Sequence[int]:
        """Take up to `count` blocks that were never used."""
        first = self._num_touched
        count = min(count, self.num_blocks - first)
        if count <= 0:
            return ()
        self._num_touched += count
        if self._num_touched > len(self._references):
            self._extend_column(count)
        return range(first, first + count)

    def _extend_column(self, count: int) -> None:
        """Extend the column by at least `count` blocks, usually by `COLUMN_STEP`, so that this is rare."""
        num_left = self.num_blocks - len(self._references)
        self._references += [0] * max(count, min(COLUMN_STEP, num_left))

    def _evict_oldest(self) -> list[int]:
        block_id: int = self._evictable.oldest()
        worth = self._evictable.evict(block_id)
        # Bytes that the next plan has yet to copy there cannot be saved before that copy.
        return self._discard(block_id, worth, valid=block_id not in self.pending)

    def _discard(self, block_id: int, worth: float, *, valid: bool) -> list[int]:
        group, key = self.prefixes.discard(block_id)
        block_ids = self.parts(block_id)
        self._joined.pop(block_id, None)
        if self.observers and worth != key.worth:
            key = key._replace(worth=worth)
        for observer in self.observers:
            for place, part in enumerate(block_ids):
                observer.removed(part, group + place, key, valid=valid)
        return block_ids

    def check_integrity(self, expected: Mapping[int, int]) -> None:
        """Raise `IntegrityError` unless every block is in exactly one place. O(blocks ever used).

        expected: references that sequences hold, by block id.
        """
        used = {block_id: count for block_id, count in enumerate(self._references) if count}
        held = dict(Counter(expected) + self.pins)
        require(used == held, "reference_counts", f"the pool counts {used}, sequences hold {held}")
        require(NULL_BLOCK not in used, "null_block", "the null block is in use")
        evictable = set(self._evictable)
        are_cached = all(block_id in self.prefixes for block_id in evictable)
        require(
            evictable.isdisjoint(used) and are_cached, "eviction_order", "a block in use, or not cached, is evictable"
        )
        spare = set(self._spare)
        elsewhere = used.keys() | evictable
        is_cached = any(block_id in self.prefixes for block_id in spare)
        require(len(spare) == len(self._spare), "spare_blocks", "a spare block is listed twice")
        require(spare.isdisjoint(elsewhere), "spare_blocks", "a spare block is elsewhere as well")
        require(not is_cached, "spare_blocks", "a spare block is cached")
        num_fresh = self.num_blocks - self._num_touched
        num_unused = len(evictable) + len(spare)
        joined = [part for parts in self._joined.values() for part in parts]
        require(
            elsewhere.isdisjoint(joined) and spare.isdisjoint(joined), "joined_blocks", "a part is elsewhere as well"
        )
        require(evictable | self.pins.keys() >= self._joined.keys(), "joined_blocks", "a state is in use or not cached")
        num_unused += len(joined)
        num_pinned = sum(len(self.parts(block_id)) - 1 for block_id in self.pins)
        require(len(used) + num_unused == self._num_touched - 1, "lost_blocks", "a block is in no place")
        require(self.num_free == num_unused - num_pinned + num_fresh, "num_free", f"{self.num_free} is wrong")
        self.prefixes.check_integrity()
