"""Cached states of layers with a state, from which sequences that share a prefix begin.

Owns: `Snapshots`: at which block edges a state is kept, under which key, and for how long. Never does: decide what runs, or
copy anything by itself. Called by: the manager, the prefix search, the planner (where a chunk is to end).

Every step overwrites a sequence's state, so the state at a block edge exists only until the next step. The state from which
a step begins at an edge can be copied into blocks of its own, cached under the key of the prefix's last block. A hit copies
it into the blocks of another sequence. No sequence has a reference to a snapshot: its blocks may be evicted as soon as they
are cached, because a plan makes its copies in order before anything is computed.

A snapshot is worth its memory and its copy when enough tokens lie between it and the previous one. So a prompt has one at
its last edge, where the next turn of a conversation will look for it, one at the edge where it left a known prefix, and one
wherever a chunk ends far enough from the others. Of the snapshots between generated tokens only the newest is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.kv_transfer import PrefixKey
from core.kv.block_keys import BlockKeys
from core.kv.block_pool import BlockPool
from core.kv.block_registry import BlockRegistry
from core.kv.sequence import KVSequence
from core.kv.state_copies import StateCopies

MIN_INTERVAL = 64
"""Minimum number of tokens between two snapshots. To compute fewer again takes about as long as one step."""


class Snapshots:
    """States after full blocks of `block_size` tokens, in tables of the pool's prefixes from number `first_table` on.

    copies:   states of the sequences, and the copies for the next plan.
    interval: minimum number of tokens between two snapshots of a sequence.
    """

    def __init__(
        self,
        pool: BlockPool,
        keys: BlockKeys,
        registry: BlockRegistry,
        copies: StateCopies,
        block_size: int,
        first_table: int,
        interval: int = MIN_INTERVAL,
    ) -> None:
        self._pool = pool
        self._keys = keys
        self._registry = registry
        self._copies = copies
        self._block_size = block_size
        self._tables = range(first_table, first_table + copies.num_blocks)
        self._interval = interval

    def find(self, key: PrefixKey) -> list[int] | None:
        """Return the blocks of the state after the block with that key; None when any of them is missing."""
        found: list[int] = []
        for table in self._tables:
            block_id = self._pool.prefixes.find(key, table)
            if block_id is None:
                return None
            found.append(block_id)
        return found

    def chunk(self, sequence: KVSequence, start: int, num_tokens: int) -> int:
        """Return the length of a chunk from `start` on, at most `num_tokens`, that ends where a state is to be kept."""
        kept = sequence.num_kept_tokens
        # An edge at the very end would not help an equal prompt, of which at least one token has to be computed.
        end = min(start + num_tokens, len(sequence.token_ids) - 1)
        fork = sequence.num_forked_tokens
        # Other sequences have shared the prefix up to the fork, so more of them may; its state was missing for this one.
        if max(start, kept + self._interval - 1) < fork < end:
            end = fork
        edge = end - end % self._block_size
        if edge <= start or edge - kept < self._interval:
            return num_tokens
        return edge - start

    def keep(self, sequence: KVSequence, num_tokens: int) -> None:
        """Keep the state after `num_tokens` tokens, from which the next plan continues, if it is worth a snapshot."""
        # Planned ahead of results, an edge may lie beyond the confirmed tokens, whose key is not known yet.
        is_known = num_tokens <= len(sequence.token_ids)
        if num_tokens % self._block_size or not is_known:
            return
        if num_tokens - sequence.num_kept_tokens < self._interval:
            return
        key = self._key(sequence, num_tokens)
        if self.find(key) is None and not self._store(sequence, key):
            return
        self._drop_generated(sequence)
        sequence.num_kept_tokens = num_tokens
        sequence.snapshots.append(num_tokens)

    def restore(self, sequence: KVSequence, num_tokens: int, block_ids: list[int]) -> None:
        """Copy the state in `block_ids`, which is the one after `num_tokens` tokens, to a sequence that starts there."""
        sequence.snapshots.append(num_tokens)
        sequence.num_kept_tokens = num_tokens
        self._refresh(self._find_kept(sequence, num_tokens))
        state = self._copies.blocks(sequence)
        self._copies.add(block_ids, state)

    def leave(self, sequence: KVSequence, *, keep_cached: bool) -> None:
        """Forget the snapshots of a sequence that has lost its blocks. keep_cached: False when its states may be wrong."""
        num_shared = sequence.num_shared_blocks * self._block_size
        for num_tokens in sequence.snapshots:
            block_ids = self._find_kept(sequence, num_tokens)
            if keep_cached:
                self._refresh(block_ids)
            # A state up to the shared blocks came from the cache, so this sequence has not written it.
            elif num_tokens > num_shared:
                self._registry.forget(block_ids)
        sequence.snapshots = []
        sequence.num_kept_tokens = 0

    def _store(self, sequence: KVSequence, key: PrefixKey) -> bool:
        """Copy a sequence's state into the blocks of a new snapshot; False without room for it, or at a collision."""
        self._forget_parts(key)
        if len(self._tables) > self._pool.num_free:
            return False
        block_ids = self._pool.allocate(len(self._tables))
        # Freed again right after this, while the copy is still to be made: a plan's copies come before everything else.
        is_cached = self._registry.offer_state(key, block_ids, self._tables)
        self._pool.free(block_ids)
        if is_cached:
            state = self._copies.blocks(sequence)
            self._copies.add(state, block_ids)
        return is_cached

    def _forget_parts(self, key: PrefixKey) -> None:
        """Remove the rest of a snapshot, some of whose blocks were evicted, from the cache."""
        for table in self._tables:
            block_id = self._pool.prefixes.find(key, table)
            if block_id is not None:
                self._pool.uncache(block_id)

    def _drop_generated(self, sequence: KVSequence) -> None:
        """Drop a snapshot between generated tokens, which a newer one replaces."""
        if sequence.num_kept_tokens > sequence.num_initial_tokens:
            num_tokens = sequence.snapshots.pop()
            block_ids = self._find_kept(sequence, num_tokens)
            self._registry.forget(block_ids)

    def _find_kept(self, sequence: KVSequence, num_tokens: int) -> list[int]:
        """Return the blocks of a sequence's snapshot, or an empty list when it was evicted."""
        key = self._key(sequence, num_tokens)
        return self.find(key) or []

    def _refresh(self, block_ids: Sequence[int]) -> None:
        """Move a snapshot to the end of the eviction order."""
        self._pool.touch(block_ids)
        self._pool.free(block_ids)

    def _key(self, sequence: KVSequence, num_tokens: int) -> PrefixKey:
        """Return the key of the last block of a prefix."""
        index = num_tokens // self._block_size - 1
        return self._keys.key(sequence, index)
