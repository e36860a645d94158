"""Blocks for sequences: prefix look-up, growth, release.

Owns: the block tables of sequences and the registration of full blocks in the prefix table. Never does: decide who runs
or who is preempted. Called by: the scheduler.

Blocks are hashed and registered lazily: those of the tokens that a sequence starts with when somebody next looks a
prefix up, those of generated tokens when the sequence leaves or their window has passed. So a decode step hashes nothing.

A prefix may be shared before it is computed: a step writes all keys and values of a layer before any is read, so that a
sequence may start in the step that computes the prefix for another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from core.api.errors import ConfigError
from core.api.kv_transfer import KVTransfers, Page
from core.api.specs import KVGroup
from core.kv.block_checks import check_manager
from core.kv.block_keys import BlockKeys
from core.kv.block_pool import NULL_BLOCK, BlockPool
from core.kv.groups import longest_sequence, single_group
from core.kv.growth import FullGrowth, growth_of
from core.kv.hashing import PrefixKey
from core.kv.integrity import require
from core.kv.observer import CacheObserver
from core.kv.prefix import PrefixHit, PrefixSearch
from core.kv.prefix_needs import PrefixNeeds
from core.kv.sequence import KVSequence
from core.kv.tiers.kv_load import KVLoad
from core.kv.tiers.tiers import KVTiers

NOTHING: list[list[int]] = []
ANY_NUMBER = 1 << 30


class KVManager:
    """Block tables of `block_size` tokens an entry, one for each KV group; block 0 is reserved.

    groups: KV groups; none given: one that keeps every token. max_step_tokens: most tokens of one sequence in a step,
    drafts included. tiers: where evicted blocks go on living. observers: hear of cached blocks.
    num_growing: groups that take more blocks as a sequence grows: all but those of states.
    num_query_tokens, num_hit_tokens: tokens asked of and found in the prefix cache, over all admissions;
    num_tier_tokens: those among them that came from a tier.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        hash_algorithm: str = "sha256",
        *,
        groups: Sequence[KVGroup] = (),
        max_step_tokens: int = 2048,
        tiers: KVTiers | None = None,
        observers: Sequence[CacheObserver] = (),
    ) -> None:
        if block_size < 1:
            raise ConfigError([f"The block size is {block_size} tokens; expected at least 1."])
        self.groups = tuple(groups) or single_group(1)
        self.growth = tuple(growth_of(group, block_size, max_step_tokens) for group in self.groups)
        self.num_growing = sum(growth.holds_slots for growth in self.growth)
        self.pool = BlockPool(num_blocks, len(self.groups))
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching and all(growth.holds_slots for growth in self.growth)
        self.tiers = tiers if self.enable_prefix_caching else None
        self.observers = (*observers, *([] if self.tiers is None else [self.tiers]))
        self.pool.observers = self.observers
        if self.tiers is not None:
            self.tiers.forget_copies()
        self.num_query_tokens = 0
        self.num_hit_tokens = 0
        self.num_tier_tokens = 0
        self.capacity = longest_sequence(self.groups, block_size, max_step_tokens, self.pool.capacity)
        self._keys = BlockKeys(hash_algorithm, block_size)
        needs = PrefixNeeds(self.growth, block_size)
        self._search = PrefixSearch(needs, len(self.groups), block_size, self._keys, self.pool.prefixes, self.tiers)
        self._starting: dict[KVSequence, None] = {}
        self._unwritten: list[int] = []
        self._is_plain = len(self.growth) == 1 and isinstance(self.growth[0], FullGrowth)

    @property
    def usage(self) -> float:
        """Fraction of blocks in use, in [0, 1]; cached blocks that nobody uses count as free."""
        return 1.0 - self.pool.num_free / self.pool.capacity

    def lookup(self, sequence: KVSequence) -> PrefixHit | KVLoad:
        """Cached blocks of the longest known prefix; at least one token is left to compute. Takes nothing.

        A prefix that nobody knows is a hit of 0 tokens. A `KVLoad` when pages may have to be read first: the sequence waits
        until `is_loaded`, and looks again.

        O(hit blocks), plus the blocks with which others started since the last look-up; when a load begins, O(blocks of
        the sequence).
        """
        if not self.enable_prefix_caching:
            return self.no_hit()
        self.register_starting()
        return self._search.find(sequence)

    def lookup_now(self, sequence: KVSequence) -> PrefixHit:
        """The same for a sequence that does not wait: the longest prefix that is in memory."""
        if not self.enable_prefix_caching:
            return self.no_hit()
        self.register_starting()
        return self._search.find_now(sequence)

    def is_loaded(self, sequence: KVSequence) -> bool:
        """Whether a sequence need not wait any longer: what it waited for is in memory, was not found or took too long."""
        load = sequence.load
        return load is None or self.tiers is None or self.tiers.collect(load)

    def wait_for_loads(self, timeout_s: float) -> None:
        """Return when a sequence's wait may be over, or after `timeout_s` seconds."""
        if self.tiers is not None:
            self.tiers.wait(timeout_s)

    def no_hit(self) -> PrefixHit:
        """What a sequence that shall not use the prefix cache starts with."""
        return PrefixHit(0, [[] for _ in self.groups])

    def blocks_missing(self, hit: PrefixHit, num_tokens: int) -> int:
        """Free blocks that a sequence takes which holds `num_tokens` tokens and shares `hit`."""
        count = self.pool.num_evictable(block_id for ids in hit.block_ids for block_id in ids if block_id)
        count += len(hit.loads)
        for growth, ids in zip(self.growth, hit.block_ids, strict=True):
            count += max(growth.table_length(hit.num_tokens, num_tokens) - len(ids), 0)
        return count

    def attach(self, sequence: KVSequence, hit: PrefixHit) -> None:
        """Start the block tables of a sequence with what `lookup` found; those tokens count as computed.

        The caller has checked that `blocks_missing` blocks are free.
        """
        self.num_query_tokens += len(sequence.token_ids)
        self.num_hit_tokens += hit.num_tokens
        sequence.block_ids = [ids.copy() for ids in hit.block_ids]
        for ids in sequence.block_ids:
            shared = [block_id for block_id in ids if block_id != NULL_BLOCK]
            self.pool.touch(shared)
            for observer in self.observers:
                for block_id in shared:
                    observer.reused(block_id)
        if hit.loads:
            self._load(sequence, hit)
        if sequence.load is not None:
            self._end_load(sequence)
        sequence.num_released = [growth.first_needed(hit.num_tokens) for growth in self.growth]
        sequence.num_slots = sequence.num_computed_tokens = sequence.num_planned_tokens = hit.num_tokens
        sequence.num_shared_blocks = sequence.num_registered_blocks = hit.num_tokens // self.block_size
        sequence.num_initial_tokens = len(sequence.token_ids)
        if self.enable_prefix_caching:
            self._starting[sequence] = None

    def allocate_slots(
        self, sequence: KVSequence, num_new_tokens: int, num_lookahead: int = 0
    ) -> list[list[int]] | None:
        """Make room for `num_new_tokens` after the computed ones and `num_lookahead` positions more.

        Returns the ids of appended blocks, one list for each group, or an empty list when there was room; None, with
        nothing appended, when too few blocks are free.
        """
        end = sequence.num_computed_tokens + num_new_tokens + num_lookahead
        missing = end - sequence.num_slots
        if missing <= 0:
            return NOTHING
        if not self._is_plain:
            return self._extend_tables(sequence, end)
        count = -(-missing // self.block_size)
        if count > self.pool.num_free:
            return None
        block_ids = self.pool.allocate(count)
        if sequence.block_ids:
            sequence.block_ids[0] += block_ids
        else:
            sequence.block_ids = [block_ids.copy()]
        sequence.num_slots += count * self.block_size
        return [block_ids]

    def allocate_next(self, sequences: Sequence[KVSequence], lengths: Sequence[int]) -> list[list[list[int]]] | None:
        """Make room for one token more in each of these sequences, whose blocks are all full, so that each has room for
        `lengths` tokens. Returns what `allocate_slots` would, for each; None, and nothing is taken, when blocks may be
        too few for all."""
        if len(sequences) * self.num_growing > self.pool.num_free:
            return None
        grown: list[list[list[int]]] = []
        if not self._is_plain:
            for sequence, length in zip(sequences, lengths, strict=True):
                block_ids = self.allocate_slots(sequence, length - sequence.num_computed_tokens)
                require(block_ids is not None, "growth", "one token took more than a block of each group")
                grown.append(block_ids or NOTHING)
            return grown
        size = self.block_size
        for sequence, block_id in zip(sequences, self.pool.allocate(len(sequences)), strict=True):
            sequence.block_ids[0].append(block_id)
            sequence.num_slots += size
            grown.append([[block_id]])
        return grown

    def free(self, sequence: KVSequence, *, keep_cached: bool = True) -> None:
        """Give all blocks of a sequence back, its tail first; nothing of it counts as computed any more.

        keep_cached: False when the values may be wrong: nobody finds the blocks that it has computed itself any more.
        """
        if keep_cached and self.enable_prefix_caching:
            self._register(sequence, sequence.num_computed_tokens // self.block_size)
        elif not keep_cached:
            own = slice(sequence.num_shared_blocks, sequence.num_registered_blocks)
            self.forget(block_id for ids in sequence.block_ids for block_id in ids[own] if block_id != NULL_BLOCK)
        self._starting.pop(sequence, None)
        if sequence.load is not None:
            self._end_load(sequence)
        tables = sequence.block_ids
        if tables:
            self.pool.free(reversed(tables[0]) if self._is_plain else _tail_first(tables))
        sequence.block_ids, sequence.num_released = [], []
        sequence.num_slots = sequence.num_computed_tokens = sequence.num_registered_blocks = 0
        sequence.num_planned_tokens = sequence.num_shared_blocks = 0

    def reset(self) -> bool:
        """Forget all cached prefixes, in tiers too; False, and no change, while any block is in use."""
        if not self.pool.reset():
            return False
        for observer in self.observers:
            observer.cleared()
        return True

    def take_transfers(self) -> KVTransfers | None:
        """Copies for the next plan that computes something: its worker does them before anything else. None: none.

        Each one taken needs one call of `settle_transfers`.
        """
        return None if self.tiers is None else self.tiers.take()

    def settle_transfers(self, transfers: KVTransfers, pages: list[Page] | None) -> None:
        """Take the saved pages in. None: the copies were not made, so what should have been loaded is forgotten."""
        if self.tiers is not None:
            self.tiers.settle(transfers, pages)
            self.forget(block_id for block_id, _ in (transfers.loads if pages is None else ()))

    def register_starting(self) -> None:
        """Offer the blocks that sequences start with, as far as they are planned, to the prefix table."""
        for sequence in list(self._starting):
            num_tokens = min(
                max(sequence.num_computed_tokens, sequence.num_planned_tokens), sequence.num_initial_tokens
            )
            self._register(sequence, num_tokens // self.block_size)
            if num_tokens >= sequence.num_initial_tokens:
                self._starting.pop(sequence, None)

    def take_unwritten(self) -> list[int]:
        """Blocks that were offered since the last call although the steps that write them have no result yet: the caller
        gives them to `forget` when one of those steps fails."""
        unwritten, self._unwritten = self._unwritten, []
        return unwritten

    def forget(self, block_ids: Iterable[int]) -> None:
        """Take blocks out of the prefix table."""
        for block_id in block_ids:
            self.pool.uncache(block_id)

    def key(self, sequence: KVSequence, index: int) -> PrefixKey:
        """Key of a full block, computed once a sequence."""
        return self._keys.key(sequence, index)

    def check_integrity(self, sequences: Iterable[KVSequence]) -> None:
        """Raise `IntegrityError` unless pool, tables, groups and tiers agree. O(blocks).

        sequences: all that may hold blocks.
        """
        check_manager(self, sequences)

    def _extend_tables(self, sequence: KVSequence, end: int) -> list[list[int]] | None:
        """Release what lies behind the windows, then append to each table what is missing up to position `end`."""
        self._release_passed(sequence)
        if not sequence.block_ids:
            sequence.block_ids = [[] for _ in self.groups]
            sequence.num_released = [0] * len(self.groups)
        wanted, computed = max(end, len(sequence.token_ids)), sequence.num_computed_tokens
        counts = [
            max(growth.table_length(computed, end if growth.needs_prefix else wanted) - len(ids), 0)
            for growth, ids in zip(self.growth, sequence.block_ids, strict=True)
        ]
        if sum(counts) > self.pool.num_free:
            return None
        block_ids = self.pool.allocate(sum(counts))
        appended: list[list[int]] = []
        for ids, count in zip(sequence.block_ids, counts, strict=True):
            appended.append(block_ids[:count])
            ids.extend(block_ids[:count])
            del block_ids[:count]
        sequence.num_slots = self.num_slots(sequence)
        return appended

    def num_slots(self, sequence: KVSequence) -> int:
        """Positions that all tables of a sequence have room for; with states alone `ANY_NUMBER`."""
        tables = zip(self.growth, sequence.block_ids, strict=True)
        lengths = [len(ids) for growth, ids in tables if growth.holds_slots]
        return min(lengths) * self.block_size if lengths else ANY_NUMBER

    def _release_passed(self, sequence: KVSequence) -> None:
        """Give back blocks that lie behind every later query's window; full ones stay cached."""
        computed = sequence.num_computed_tokens
        for group, ids in enumerate(sequence.block_ids):
            first, start = self.growth[group].first_needed(computed), sequence.num_released[group]
            if first <= start:
                continue
            if self.enable_prefix_caching and first > sequence.num_registered_blocks:
                self._register(sequence, first)
            self.pool.free(reversed(ids[start:first]))
            ids[start:first] = [NULL_BLOCK] * (first - start)
            sequence.num_released[group] = first

    def _load(self, sequence: KVSequence, hit: PrefixHit) -> None:
        """Take blocks for pages that a tier has; the next plan carries the pages to them."""
        assert self.tiers is not None
        for load, block_id in zip(hit.loads, self.pool.allocate(len(hit.loads)), strict=True):
            sequence.block_ids[load.group][load.entry] = block_id
            self._cache(sequence, load.group, load.entry, block_id)
            self.tiers.load(block_id, load.page)
        self.num_tier_tokens += len({load.entry for load in hit.loads}) * self.block_size

    def _end_load(self, sequence: KVSequence) -> None:
        """The pages that a sequence waited for are in its blocks, or it does not wait any more."""
        load = sequence.load
        sequence.load = None
        if self.tiers is not None and load is not None:
            self.tiers.end(load)

    def _register(self, sequence: KVSequence, num_blocks: int) -> None:
        """Offer the blocks before index `num_blocks`, but none behind a collision: the wrong prefix would lead to it."""
        num_written = sequence.num_computed_tokens // self.block_size
        for index in range(sequence.num_registered_blocks, num_blocks):
            for group, ids in enumerate(sequence.block_ids):
                if ids[index] != NULL_BLOCK and not self._cache(sequence, group, index, ids[index]):
                    return
                if index >= num_written:
                    self._unwritten.append(ids[index])
            sequence.num_registered_blocks = index + 1

    def _cache(self, sequence: KVSequence, group: int, index: int, block_id: int) -> bool:
        """Cache a block; False when its key collides with that of other tokens."""
        key = self.key(sequence, index)
        if not self.pool.cache(key, block_id, group):
            return not self.pool.prefixes.collides(key, group)
        if self.observers:
            parent = self.key(sequence, index - 1).digest if index else None
            for observer in self.observers:
                observer.stored(block_id, group, key, parent)
        return True


def _tail_first(tables: Sequence[Sequence[int]]) -> Iterator[int]:
    """The blocks of all tables, last ones first, so that a prefix loses its end first."""
    for index in range(max(map(len, tables)) - 1, -1, -1):
        for ids in tables:
            if index < len(ids) and ids[index] != NULL_BLOCK:
                yield ids[index]
