"""Blocks for sequences: prefix look-up, growth, release.

Owns: the block tables of sequences and the registration of full blocks in the prefix table. Never does: decide who runs
or who is preempted. Called by: the scheduler.

Blocks are hashed and registered lazily: those of the tokens that a sequence starts with when somebody next looks a
prefix up, those of generated tokens when the sequence leaves. So a decode step hashes nothing.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

from core.api.errors import ConfigError
from core.kv.block_pool import BlockPool
from core.kv.hashing import PrefixHasher, PrefixKey
from core.kv.integrity import require
from core.kv.sequence import KVSequence


class KVManager:
    """One group of blocks of `block_size` tokens each; block 0 is reserved.

    num_query_tokens, num_hit_tokens: tokens asked of and found in the prefix cache, over all admissions.
    """

    def __init__(
        self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True, hash_algorithm: str = "sha256"
    ) -> None:
        if block_size < 1:
            raise ConfigError([f"The block size is {block_size} tokens; expected at least 1."])
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.num_query_tokens = 0
        self.num_hit_tokens = 0
        self._hasher = PrefixHasher(hash_algorithm)
        self._starting: set[KVSequence] = set()

    @property
    def capacity(self) -> int:
        """Tokens that the whole cache holds."""
        return self.pool.capacity * self.block_size

    @property
    def usage(self) -> float:
        """Fraction of blocks in use, in [0, 1]; cached blocks that nobody uses count as free."""
        return 1.0 - self.pool.num_free / self.pool.capacity

    def lookup(self, sequence: KVSequence) -> list[int]:
        """Cached blocks of the longest known prefix; at least one token is left to compute. Takes nothing.

        O(hit blocks), plus the blocks with which others started since the last look-up.
        """
        if not self.enable_prefix_caching:
            return []
        self._register_starting()
        hits: list[int] = []
        for index in range((len(sequence.token_ids) - 1) // self.block_size):
            block_id = self.pool.prefixes.find(self._key(sequence, index))
            if block_id is None:
                break
            hits.append(block_id)
        return hits

    def blocks_missing(self, hits: Sequence[int], num_tokens: int) -> int:
        """Free blocks that a sequence takes which holds `num_tokens` tokens and shares `hits`."""
        num_blocks = -(-num_tokens // self.block_size)
        return num_blocks - len(hits) + self.pool.num_evictable(hits)

    def attach(self, sequence: KVSequence, hits: list[int]) -> None:
        """Start the block table of a sequence with the blocks that `lookup` found; their tokens count as computed."""
        self.num_query_tokens += len(sequence.token_ids)
        self.num_hit_tokens += len(hits) * self.block_size
        self.pool.touch(hits)
        sequence.block_ids = hits.copy()
        sequence.num_slots = sequence.num_computed_tokens = len(hits) * self.block_size
        sequence.num_registered_blocks = len(hits)
        sequence.num_initial_tokens = len(sequence.token_ids)
        if self.enable_prefix_caching:
            self._starting.add(sequence)

    def allocate_slots(self, sequence: KVSequence, num_new_tokens: int, num_lookahead: int = 0) -> list[int] | None:
        """Make room for `num_new_tokens` after the computed ones and `num_lookahead` positions more.

        Returns the ids of appended blocks (often none), or None, without any change, when too few blocks are free.
        """
        missing = sequence.num_computed_tokens + num_new_tokens + num_lookahead - sequence.num_slots
        if missing <= 0:
            return []
        count = -(-missing // self.block_size)
        if count > self.pool.num_free:
            return None
        block_ids = self.pool.allocate(count)
        sequence.block_ids += block_ids
        sequence.num_slots += count * self.block_size
        return block_ids

    def free(self, sequence: KVSequence, *, keep_cached: bool = True) -> None:
        """Give all blocks of a sequence back, its tail first; nothing of it counts as computed any more.

        keep_cached: False when the values may be wrong: blocks not yet in the prefix table stay out of it.
        """
        if keep_cached and self.enable_prefix_caching:
            self._register(sequence, sequence.num_computed_tokens)
        self._starting.discard(sequence)
        self.pool.free(reversed(sequence.block_ids))
        sequence.block_ids = []
        sequence.num_slots = sequence.num_computed_tokens = sequence.num_registered_blocks = 0

    def reset(self) -> bool:
        """Forget all cached prefixes; False, and no change, while any block is in use."""
        return self.pool.reset()

    def _register_starting(self) -> None:
        """Offer the blocks that sequences start with, as far as they are computed, to the prefix table."""
        for sequence in list(self._starting):
            self._register(sequence, min(sequence.num_computed_tokens, sequence.num_initial_tokens))
            if sequence.num_computed_tokens >= sequence.num_initial_tokens:
                self._starting.discard(sequence)

    def _register(self, sequence: KVSequence, num_tokens: int) -> None:
        num_full = num_tokens // self.block_size
        for index in range(sequence.num_registered_blocks, num_full):
            self.pool.cache(self._key(sequence, index), sequence.block_ids[index])
        sequence.num_registered_blocks = num_full

    def _key(self, sequence: KVSequence, index: int) -> PrefixKey:
        """Key of a full block, computed once a sequence."""
        keys = sequence.prefix_keys
        while len(keys) <= index:
            parent = keys[-1].digest if keys else self._hasher.root(sequence.cache_salt)
            start = len(keys) * self.block_size
            keys.append(self._hasher.key(parent, sequence.token_ids[start : start + self.block_size]))
        return keys[index]

    def check_integrity(self, sequences: Iterable[KVSequence]) -> None:
        """Raise `IntegrityError` unless pool, table and block tables agree. sequences: all that may hold blocks."""
        expected: Counter[int] = Counter()
        for sequence in sequences:
            self._check_sequence(sequence)
            expected.update(sequence.block_ids)
        self.pool.check_integrity(expected)

    def _check_sequence(self, sequence: KVSequence) -> None:
        block_ids, size = sequence.block_ids, self.block_size
        require(len(set(block_ids)) == len(block_ids), "block_table", f"a block appears twice in {block_ids}")
        require(sequence.num_slots == len(block_ids) * size, "num_slots", f"{sequence.num_slots} is wrong")
        require(
            sequence.num_computed_tokens <= min(sequence.num_slots, len(sequence.token_ids)),
            "num_computed_tokens",
            f"{sequence.num_computed_tokens} of {len(sequence.token_ids)} tokens in {sequence.num_slots} slots",
        )
        require(
            sequence.num_registered_blocks * size <= sequence.num_computed_tokens,
            "registered_blocks",
            f"{sequence.num_registered_blocks} blocks of {sequence.num_computed_tokens} computed tokens",
        )
        for index in range(sequence.num_registered_blocks):
            cached = self.pool.prefixes.payload(block_ids[index])
            tokens = array("I", sequence.token_ids[index * size : (index + 1) * size]).tobytes()
            require(cached in (None, tokens), "cached_tokens", f"block {block_ids[index]} is cached with other tokens")
