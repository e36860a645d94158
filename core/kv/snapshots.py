"""Cached states: what sequences that share a prefix begin from in layers with a state.

Owns: `Snapshots`: at which block edges a state is kept, under which key, and for how long. Never does: decide who runs, or
copy anything by itself. Called by: the manager, the prefix search; the planner asks where a chunk is to end.

Every step overwrites a sequence's state, so the state behind a block edge exists only until the next step. What a step
finds when it begins at an edge can be copied into blocks of its own, cached under the key of the prefix's last block. A hit
copies it into the blocks of another sequence. Nobody ever holds a snapshot: its blocks may be evicted as soon as they are
cached, because a plan makes its copies in order before anything is computed.

A snapshot is worth its memory and its copy when enough tokens lie between it and the one before. So a prompt has one at
its last edge, where the next turn of a conversation will look for it, at the edge where it left a known prefix, and wherever
a chunk ends far enough from the others; of the generated tokens, only the newest one is kept.
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
"""Tokens between two snapshots. Fewer are computed again about as quickly as a step of their own takes."""


class Snapshots:
    """States behind full blocks of `block_size` tokens, in tables of the pool's prefixes from number `first_table` on.

    copies:   of the sequences' states.
    interval: tokens between two snapshots of a sequence, at least.
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
        """The blocks of the state behind the block with that key, None when any of them is missing."""
        found: list[int] = []
        for table in self._tables:
            block_id = self._pool.prefixes.find(key, table)
            if block_id is None:
                return None
            found.append(block_id)
        return found

    def chunk(self, sequence: KVSequence, start: int, num_tokens: int) -> int:
        """Tokens of a chunk from `start` on, of `num_tokens` at most, so that it ends where a state is to be kept."""
        kept = sequence.num_kept_tokens
        end = min(start + num_tokens, len(sequence.token_ids) - 1)
        fork = sequence.num_forked_tokens
        if max(start, kept + self._interval - 1) < fork < end:
            end = fork
        edge = end - end % self._block_size
        if edge <= start or edge - kept < self._interval:
            return num_tokens
        return edge - start

    def keep(self, sequence: KVSequence, num_tokens: int) -> None:
        """Keep the state behind `num_tokens` tokens, from which the next plan goes on, if it is worth that."""
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
        """A sequence begins behind `num_tokens` tokens, whose state `find` found in `block_ids`."""
        sequence.snapshots.append(num_tokens)
        sequence.num_kept_tokens = num_tokens
        self._refresh(self._find_kept(sequence, num_tokens))
        state = self._copies.blocks(sequence)
        self._copies.add(block_ids, state)

    def leave(self, sequence: KVSequence, *, keep_cached: bool) -> None:
        """A sequence has lost its blocks. keep_cached: False when its states may have been wrong."""
        num_shared = sequence.num_shared_blocks * self._block_size
        for num_tokens in sequence.snapshots:
            block_ids = self._find_kept(sequence, num_tokens)
            if keep_cached:
                self._refresh(block_ids)
            elif num_tokens > num_shared:
                self._registry.forget(block_ids)
        sequence.snapshots = []
        sequence.num_kept_tokens = 0

    def _store(self, sequence: KVSequence, key: PrefixKey) -> bool:
        """Copy a sequence's state into blocks of a snapshot; False when there is no room for it."""
        self._forget_parts(key)
        if len(self._tables) > self._pool.num_free:
            return False
        block_ids = self._pool.allocate(len(self._tables))
        is_cached = self._registry.offer_state(key, block_ids, self._tables)
        self._pool.free(block_ids)
        if is_cached:
            state = self._copies.blocks(sequence)
            self._copies.add(state, block_ids)
        return is_cached

    def _forget_parts(self, key: PrefixKey) -> None:
        """Take what is left of a snapshot, some of whose blocks were evicted, out of the cache."""
        for table in self._tables:
            block_id = self._pool.prefixes.find(key, table)
            if block_id is not None:
                self._pool.uncache(block_id)

    def _drop_generated(self, sequence: KVSequence) -> None:
        """Forget a snapshot between generated tokens, which a newer one replaces."""
        if sequence.num_kept_tokens > sequence.num_initial_tokens:
            num_tokens = sequence.snapshots.pop()
            block_ids = self._find_kept(sequence, num_tokens)
            self._registry.forget(block_ids)

    def _find_kept(self, sequence: KVSequence, num_tokens: int) -> list[int]:
        """The blocks of a sequence's snapshot, as far as it is still there."""
        key = self._key(sequence, num_tokens)
        return self.find(key) or []

    def _refresh(self, block_ids: Sequence[int]) -> None:
        """Have a snapshot evicted after everything that is evictable now."""
        self._pool.touch(block_ids)
        self._pool.free(block_ids)

    def _key(self, sequence: KVSequence, num_tokens: int) -> PrefixKey:
        """Of the last block of a prefix."""
        index = num_tokens // self._block_size - 1
        return self._keys.key(sequence, index)
