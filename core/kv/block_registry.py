"""Which blocks of sequences are offered to the prefix table, and when.

Owns: `BlockRegistry`. Never does: take or free blocks, look prefixes up. Called by: the manager and the block tables.

Blocks are hashed and registered lazily: those of the tokens that a sequence starts with when somebody next looks a
prefix up, those of generated tokens when the sequence leaves or their window has passed. So a decode step hashes nothing.

A prefix may be shared before it is computed: a step writes all keys and values of a layer before any is read, so that a
sequence may start in the step that computes the prefix for another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from core.api.kv_transfer import PrefixKey
from core.kv.block_keys import BlockKeys
from core.kv.block_pool import NULL_BLOCK, BlockPool
from core.kv.observer import CacheObserver
from core.kv.sequence import KVSequence


class BlockRegistry:
    """Offers blocks of `block_size` tokens under their keys.

    observers: hear of blocks that are cached now.
    num_keyed: groups with keys, which come first; blocks of states are no entries of tokens.
    enabled:   False when prefixes are not cached: nothing is offered.
    remember:  called with a sequence that is about to lose its blocks; None when no one asks.
    """

    def __init__(
        self,
        pool: BlockPool,
        keys: BlockKeys,
        block_size: int,
        observers: Sequence[CacheObserver],
        num_keyed: int,
        *,
        enabled: bool,
        remember: Callable[[KVSequence], None] | None = None,
    ) -> None:
        self._pool = pool
        self._keys = keys
        self._block_size = block_size
        self._observers = observers
        self._num_keyed = num_keyed
        self._enabled = enabled
        self._remember = remember
        self._starting: dict[KVSequence, None] = {}
        self._unwritten: list[int] = []

    def begin(self, sequence: KVSequence) -> None:
        """A sequence has its first blocks: what it starts with is offered at the next look-up."""
        if self._enabled:
            self._starting[sequence] = None

    def offer_starting(self) -> None:
        """Offer the blocks that sequences start with, as far as they are planned."""
        for sequence in list(self._starting):
            num_planned = max(sequence.num_computed_tokens, sequence.num_planned_tokens)
            num_tokens = min(num_planned, sequence.num_initial_tokens)
            self.offer(sequence, num_tokens // self._block_size)
            if num_tokens >= sequence.num_initial_tokens:
                self._starting.pop(sequence, None)

    def offer(self, sequence: KVSequence, num_blocks: int) -> None:
        """Offer the blocks before index `num_blocks`, but none behind a collision: the wrong prefix would lead to it."""
        if not self._enabled:
            return
        num_written = sequence.num_computed_tokens // self._block_size
        tables = sequence.block_ids[: self._num_keyed]
        for index in range(sequence.num_registered_blocks, num_blocks):
            for group, ids in enumerate(tables):
                block_id = ids[index]
                if block_id != NULL_BLOCK and not self.cache(sequence, group, index, block_id):
                    return
                if index >= num_written:
                    self._unwritten.append(block_id)
            sequence.num_registered_blocks = index + 1

    def cache(self, sequence: KVSequence, group: int, index: int, block_id: int) -> bool:
        """Cache a block; False when its key collides with that of other tokens."""
        key = self._keys.key(sequence, index)
        if not self._pool.cache(key, block_id, group):
            return not self._pool.prefixes.collides(key, group)
        if self._observers:
            parent: bytes | None = None
            if index:
                parent = self._keys.key(sequence, index - 1).digest
            for observer in self._observers:
                observer.stored(block_id, group, key, parent)
        return True

    def offer_state(self, key: PrefixKey, block_ids: Sequence[int], tables: Sequence[int]) -> bool:
        """Cache the blocks that the next step's copies fill with a state; False, and no change, at a collision.

        tables: of the prefixes, one for each block.
        """
        prefixes = self._pool.prefixes
        if any(prefixes.collides(key, table) for table in tables):
            return False
        for table, block_id in zip(tables, block_ids, strict=True):
            self._pool.cache(key, block_id, table)
            for observer in self._observers:
                observer.stored(block_id, table, key, None)
        self._unwritten += block_ids
        return True

    def leave(self, sequence: KVSequence, *, keep_cached: bool) -> None:
        """A sequence is about to lose its blocks. The ones it has computed are offered, or forgotten if they may be wrong."""
        if keep_cached:
            self.offer(sequence, sequence.num_computed_tokens // self._block_size)
            if self._remember is not None and sequence.num_computed_tokens:
                self._remember(sequence)
        else:
            own = slice(sequence.num_shared_blocks, sequence.num_registered_blocks)
            for ids in sequence.block_ids[: self._num_keyed]:
                held = [block_id for block_id in ids[own] if block_id != NULL_BLOCK]
                self.forget(held)
        self._starting.pop(sequence, None)

    def forget(self, block_ids: Iterable[int]) -> None:
        """Nobody finds these blocks any more: their values are wrong."""
        for block_id in block_ids:
            self._pool.uncache(block_id)

    def take_unwritten(self) -> list[int]:
        """Blocks offered since the last call although the steps that write them have no result yet."""
        unwritten = self._unwritten
        self._unwritten = []
        return unwritten
