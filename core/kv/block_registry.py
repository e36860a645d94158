"""Registration of sequences' blocks in the prefix table.

Owns: `BlockRegistry`. Never does: take or free blocks, look prefixes up. Called by: the manager and the block tables.

Blocks are hashed and registered lazily: those of a sequence's initial tokens at the next look-up of any prefix, those of
generated tokens when the sequence leaves or their window has passed. So a decode step hashes nothing.

A prefix may be shared before it is computed: a step writes all keys and values of a layer before any is read, so that a
sequence may start in the step that computes the prefix for another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from core.api.kv_transfer import PrefixKey
from core.kv.block_keys import BlockKeys
from core.kv.block_pool import NULL_BLOCK, BlockPool
from core.kv.eviction import worth_of
from core.kv.sequence import KVSequence


class BlockRegistry:
    """Offers blocks of `block_size` tokens to the prefix table under their keys; owned by the manager.

    num_keyed: number of groups with keys, which come first; tables of states have no entries of tokens.
    enabled:   False when prefixes are not cached: nothing is offered.
    remember:  called with a sequence that is about to lose its blocks; None without an explainer.
    """

    def __init__(
        self,
        pool: BlockPool,
        keys: BlockKeys,
        block_size: int,
        num_keyed: int,
        *,
        enabled: bool,
        remember: Callable[[KVSequence], None] | None = None,
    ) -> None:
        self._pool = pool
        self._keys = keys
        self._block_size = block_size
        self._num_keyed = num_keyed
        self._enabled = enabled
        self._remember = remember
        # A dict as an ordered set: blocks are offered in the order in which sequences started.
        self._starting: dict[KVSequence, None] = {}
        self._unwritten: list[int] = []

    def begin(self, sequence: KVSequence) -> None:
        """Note that a sequence has its first blocks: those of its initial tokens are offered at the next look-up."""
        if self._enabled:
            self._starting[sequence] = None

    def offer_starting(self) -> None:
        """Offer the blocks of sequences' initial tokens, as far as they are planned."""
        for sequence in list(self._starting):
            # Planned is enough: a step writes the keys and values of a layer before it reads any. Should the step fail, the
            # scheduler forgets these blocks (`take_unwritten`).
            num_planned = max(sequence.num_computed_tokens, sequence.num_planned_tokens)
            num_tokens = min(num_planned, sequence.num_initial_tokens)
            self.offer(sequence, num_tokens // self._block_size)
            if num_tokens >= sequence.num_initial_tokens:
                self._starting.pop(sequence, None)

    def offer(self, sequence: KVSequence, num_blocks: int) -> None:
        """Offer the blocks before index `num_blocks`, but none after a collision, whose prefix would be the wrong one."""
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
        """Cache a block; False when its key collides with the key of other tokens."""
        key = self._keys.key(sequence, index)
        is_public = (index + 1) * self._block_size <= sequence.num_public_tokens
        tenant = "" if is_public else sequence.tenant
        if not self._pool.cache(key, block_id, group, tenant=tenant, worth=worth_of(len(sequence.token_ids))):
            # Another sequence has cached the same tokens first: no collision, this block just stays uncached.
            return not self._pool.prefixes.collides(key, group)
        if self._pool.observers:
            parent = self._keys.key(sequence, index - 1).digest if index else None
            for observer in self._pool.observers:
                observer.stored(block_id, group, key, parent)
                if (index + 1) * self._block_size > sequence.num_initial_tokens:
                    observer.answered(block_id)
        return True

    def offer_state(
        self, key: PrefixKey, block_ids: Sequence[int], table: int, *, tenant: str, num_tokens: int, is_written: bool
    ) -> bool:
        """Cache blocks with a state as one entry of `table`; False, without a change, where the digest is taken.

        num_tokens: number of tokens from the state before it. is_written: False when the next step's copies fill them.
        """
        size = len(block_ids)
        worth = num_tokens / (self._block_size * size)
        if not self._pool.cache(key, block_ids[0], table, tenant=tenant, worth=worth, size=size):
            return False
        self._pool.join(block_ids)
        if not is_written:
            self._unwritten.append(block_ids[0])
        return True

    def report_state(self, key: PrefixKey, table: int, parent: bytes | None) -> None:
        """Report a state, if it is still cached, to the observers: page i of it as a block of group `table` + i.

        parent: digest of the block before that of `key`. Until its sequence leaves, a newer state may replace it, so that
        it is not worth saving.
        """
        block_id = self._pool.prefixes.find(key, table)
        if block_id is not None:
            for place, part in enumerate(self._pool.parts(block_id)):
                for observer in self._pool.observers:
                    observer.stored(part, table + place, key, parent)

    def leave(self, sequence: KVSequence, *, keep_cached: bool) -> None:
        """Offer the blocks that a sequence has computed before it loses them, or forget them if they may be wrong."""
        if keep_cached:
            self.offer(sequence, sequence.num_computed_tokens // self._block_size)
            if self._remember is not None and sequence.num_computed_tokens:
                self._remember(sequence)
        else:
            own = slice(sequence.num_shared_blocks, sequence.num_registered_blocks)
            for ids in sequence.block_ids[: self._num_keyed]:
                self.forget(block_id for block_id in ids[own] if block_id != NULL_BLOCK)
        self._starting.pop(sequence, None)

    def forget(self, block_ids: Iterable[int]) -> None:
        """Remove blocks with wrong values from the prefix table."""
        for block_id in block_ids:
            self._pool.uncache(block_id)

    def take_unwritten(self) -> list[int]:
        """Return the blocks offered since the last call although the steps that write them have no result yet."""
        unwritten = self._unwritten
        self._unwritten = []
        return unwritten
