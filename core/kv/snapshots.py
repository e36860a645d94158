"""Cached states of layers with a state, from which sequences that share a prefix begin.

Owns: `Snapshots`: at which block edges a state is kept, under which key, and for how long. Never does: decide what runs, or
copy anything by itself. Called by: the manager, the prefix search, the planner (where a chunk is to end).

Every step overwrites a sequence's state, so the state at a block edge exists only until the next step. The state from which
a step begins at an edge can be copied into blocks of its own, cached under the key of the prefix's last block. A hit copies
it into the blocks of another sequence. A sequence that decodes leaves the blocks with its state as the snapshot instead: its
step reads them and writes to others. No sequence has a reference to a snapshot: its blocks may be evicted, all together, as
soon as the plan is complete that copies to them or reads them.

The next turn of a conversation continues at the last edge of prompt and answer, or, where a stop string cut the answer, at the
one before; a long stop string may cut more. So the last edge of a prompt is kept, and of generated tokens the newest two and
as many more as the longest stop string may cut. Elsewhere a snapshot needs some
distance to the previous one: where a prompt left a known prefix, and where a chunk ends. States of earlier turns thin out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from core.api.kv_transfer import PrefixKey
from core.kv.block_keys import BlockKeys
from core.kv.block_pool import BlockPool
from core.kv.block_registry import BlockRegistry
from core.kv.sequence import MAX_WAITS, KVSequence
from core.kv.state_copies import StateCopies

MIN_INTERVAL = 64
"""Minimum number of tokens between two snapshots inside a prompt. To compute fewer again takes about as long as one step."""

FORK = 2
"""Number of sequences that began at a state which is never thinned out."""


class Snapshots:
    """States after full blocks of `block_size` tokens, in table number `table` of the pool's prefixes.

    copies:   states of the sequences, and the copies for the next plan.
    interval: minimum number of tokens between two snapshots inside a prompt.
    every:    states after multiples of this number of tokens are kept as well, until they are evicted; 0: none.
    is_short: whether the last state was not kept because others of this plan have taken the free blocks, until it is complete.
    """

    def __init__(
        self,
        pool: BlockPool,
        keys: BlockKeys,
        registry: BlockRegistry,
        copies: StateCopies,
        block_size: int,
        table: int,
        interval: int = MIN_INTERVAL,
        every: int = 0,
    ) -> None:
        self._pool = pool
        self._keys = keys
        self._registry = registry
        self._copies = copies
        self._block_size = block_size
        self._table = table
        self._interval = interval
        self._every = every
        self._uses: Counter[int] = Counter()
        self._unfilled: list[int] = []
        self.is_short = False

    @property
    def num_pages(self) -> int:
        """Number of pages, each of one block, of a state."""
        return self._copies.num_blocks

    def find(self, key: PrefixKey) -> list[int]:
        """Return the blocks of the state after the block with that key; empty when it is not cached."""
        block_id = self._pool.prefixes.find(key, self._table)
        return [] if block_id is None else self._pool.parts(block_id)

    def chunk(self, sequence: KVSequence, start: int, num_tokens: int) -> int:
        """Return the length of a chunk from `start` on, at most `num_tokens`, that ends where a state is to be kept."""
        kept = sequence.num_kept_tokens
        # An edge at the very end would not help an equal prompt, of which at least one token has to be computed.
        last = len(sequence.token_ids) - 1
        end = min(start + num_tokens, last)
        if self._every:
            end = min(end, start - start % self._every + self._every)
        fork = sequence.num_forked_tokens
        # Other sequences have shared the prefix up to the fork, so more of them may; its state was missing for this one.
        if max(start, kept + self._interval - 1) < fork < end:
            end = fork
        wanted = self._wanted(sequence)
        end = min((place for place in wanted if max(start, kept) < place < end), default=end)
        edge = self._edge(end)
        is_needed = edge in wanted or self._is_regular(edge)
        if edge <= start or (edge - kept < self._interval and not is_needed):
            return num_tokens
        return edge - start

    def most_drafts(self, num_tokens: int, num_pending: int) -> int:
        """Return how many drafts a step that begins after `num_tokens` tokens may verify without passing an edge."""
        return self._edge(num_tokens) + self._block_size - num_tokens - num_pending

    def keep(self, sequence: KVSequence, num_tokens: int, *, num_needed: int = 0, moves: bool = False) -> bool:
        """Keep the state after `num_tokens` tokens, from which the next plan continues, if it is worth a snapshot.

        num_needed: number of blocks that must stay free, without which the sequence might not be planned.
        moves: whether the plan may read a state in other blocks than it writes it to. Returns whether it has to.
        """
        self.is_short = False
        # Planned ahead of results, an edge may lie beyond the confirmed tokens, whose key is not known yet.
        is_known = num_tokens <= len(sequence.token_ids)
        if num_tokens % self._block_size or not is_known or num_tokens <= sequence.num_kept_tokens:
            return False
        wanted = self._wanted(sequence)
        is_inside = num_tokens < max(wanted) and num_tokens not in wanted
        is_near = num_tokens - sequence.num_kept_tokens < self._interval
        if is_inside and is_near and not self._is_regular(num_tokens):
            return False
        found = self.find(self._key(sequence, num_tokens))
        if found:
            self._uses[found[0]] = FORK
            self._add(sequence, num_tokens)
            return False
        size = self._copies.num_blocks
        if size + num_needed > self._pool.num_free:
            self.is_short = bool(self._unfilled) and sequence.num_waits < MAX_WAITS
            return False
        block_ids = self._pool.allocate(size)
        # A draft model reads the same blocks in other steps, so with drafts the sequence keeps its own.
        moves = moves and not self._copies.can_roll_back
        if moves:
            block_ids = self._copies.move(sequence, block_ids)
        if self._cache(sequence, num_tokens, block_ids, is_written=False):
            self._add(sequence, num_tokens)
            if not moves:
                self._copies.add(self._copies.blocks(sequence), block_ids)
        return moves

    def release(self) -> None:
        """Let snapshots be evicted whose copies are in the plan that has just been completed, or that it reads."""
        self._pool.free(self._unfilled)
        self._unfilled = []

    def adopt(self, sequence: KVSequence) -> None:
        """Keep the state of a sequence that is about to lose its blocks, and has this state exactly, without a copy."""
        num_tokens = sequence.num_computed_tokens
        if num_tokens % self._block_size or num_tokens <= sequence.num_kept_tokens:
            return
        is_cached = bool(self.find(self._key(sequence, num_tokens)))
        if is_cached or self._cache(sequence, num_tokens, self._copies.take_blocks(sequence), is_written=True):
            self._add(sequence, num_tokens)

    def restore(self, sequence: KVSequence, num_tokens: int, block_ids: list[int]) -> None:
        """Copy the state in `block_ids`, which is the one after `num_tokens` tokens, to a sequence that starts there."""
        self.begin(sequence, num_tokens)
        self._uses[block_ids[0]] += 1
        self._refresh(sequence, num_tokens, is_hit=True)
        self._copies.add(block_ids, self._copies.blocks(sequence))

    def begin(self, sequence: KVSequence, num_tokens: int) -> None:
        """Note that a sequence starts with the state after `num_tokens` tokens."""
        sequence.snapshots.append(num_tokens)
        sequence.num_kept_tokens = num_tokens

    def leave(self, sequence: KVSequence, *, keep_cached: bool) -> None:
        """Let go of the snapshots of a sequence that has lost its blocks. keep_cached: False when its states may be wrong."""
        num_shared = sequence.num_shared_blocks * self._block_size
        if keep_cached and sequence.snapshots:
            self._thin(sequence)
        for num_tokens in sequence.snapshots:
            if keep_cached:
                self._refresh(sequence, num_tokens)
                before = num_tokens - self._block_size
                parent = self._key(sequence, before).digest if before else None
                self._registry.report_state(self._key(sequence, num_tokens), self._table, parent)
            # A state up to the shared blocks came from the cache, so this sequence has not written it.
            elif num_tokens > num_shared:
                self._registry.forget(self.find(self._key(sequence, num_tokens))[:1])
        sequence.snapshots = []
        sequence.num_kept_tokens = 0

    def _add(self, sequence: KVSequence, num_tokens: int) -> None:
        """Note a snapshot of a sequence. Of those between generated tokens only the newest stay, see `_num_newest`."""
        kept = sequence.snapshots
        newest = self._num_newest(sequence)
        if len(kept) >= newest and kept[-newest] >= sequence.num_initial_tokens and not self._is_regular(kept[-newest]):
            self._drop(sequence, kept.pop(-newest))
        kept.append(num_tokens)
        sequence.num_kept_tokens = num_tokens

    def _thin(self, sequence: KVSequence) -> None:
        """Forget older states, so that the distances from the end to those that stay about double.

        The newest stay, as `_num_newest` says, the one at the end of the prompt, and those at which several sequences began.
        """
        end = sequence.snapshots[-1]
        # By their places, too: after a preemption the list begins anew, and a stop string may cut into what was kept before.
        newest = self._num_newest(sequence)
        younger = min(sequence.snapshots[-newest:][0], end - (newest - 1) * self._block_size)
        lasting = self._wanted(sequence)
        places = [
            place
            for place in range(self._block_size, younger, self._block_size)
            if self.find(self._key(sequence, place))
        ]
        while places:
            place = places.pop()
            older = places[-1] if places else 0
            is_needed = place in lasting or self._is_regular(place)
            if end - older < 2 * (end - younger) and not is_needed:
                self._drop(sequence, place)
            else:
                younger = place

    def _num_newest(self, sequence: KVSequence) -> int:
        """Return how many of the newest edges a turn of the sequence may end before: two, and those that a stop string cuts."""
        return 2 + sequence.max_cut // self._block_size

    def _cache(self, sequence: KVSequence, num_tokens: int, block_ids: Sequence[int], *, is_written: bool) -> bool:
        """Cache a state in blocks that are in use, and free them, now or once they are filled; False at a collision."""
        key = self._key(sequence, num_tokens)
        is_cached = self._registry.offer_state(
            key, block_ids, self._table,
            tenant=sequence.tenant, num_tokens=num_tokens - sequence.num_kept_tokens, is_written=is_written,
        )  # fmt: skip
        left = block_ids[:1] if is_cached else block_ids
        if is_written:
            self._pool.free(left)
        else:
            self._unfilled += left
        if is_cached:
            # Where this prompt left a known prefix, more of them will begin.
            self._uses[block_ids[0]] = FORK if num_tokens == sequence.num_forked_tokens else 0
        return is_cached

    def _drop(self, sequence: KVSequence, num_tokens: int) -> None:
        """Forget a snapshot, unless it is pinned, or several sequences began or went on there."""
        first = self.find(self._key(sequence, num_tokens))[:1]
        is_used = not first or self._uses[first[0]] >= FORK or self._pool.pins[first[0]] or first[0] in self._unfilled
        self._registry.forget([] if is_used else first)

    def _refresh(self, sequence: KVSequence, num_tokens: int, *, is_hit: bool = False) -> None:
        """Move a sequence's snapshot, unless it was evicted, to the end of the eviction order."""
        first = self.find(self._key(sequence, num_tokens))[:1]
        self._pool.touch(first)
        if is_hit:
            self._pool.hit(first, 0.0)
        self._pool.free(first)

    def _wanted(self, sequence: KVSequence) -> set[int]:
        """Return the block edges whose state is kept at any distance to others: those before `edges`, and the prompt's last."""
        last = (sequence.num_initial_tokens or len(sequence.token_ids)) - 1
        return {self._edge(min(place, last)) for place in (*sequence.edges, last)}

    def _is_regular(self, num_tokens: int) -> bool:
        return self._every > 0 and num_tokens % self._every == 0

    def _edge(self, num_tokens: int) -> int:
        return num_tokens - num_tokens % self._block_size

    def _key(self, sequence: KVSequence, num_tokens: int) -> PrefixKey:
        """Return the key of the last block of a prefix."""
        return self._keys.key(sequence, num_tokens // self._block_size - 1)
