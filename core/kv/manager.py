"""The KV cache as the scheduler sees it: prefix look-up, growth, release.

Owns: the composition of block pool, block tables, registry, prefix search and connectors, and the counts of hits. Never
does: decide which sequence runs or is preempted, or know where a page outside the pool is stored. Called by: the scheduler;
connectors use the part of it that is `BlockCache`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from core.api.errors import ConfigError
from core.api.kv_load import KVLoad
from core.api.kv_transfer import KVTransfers, Page, PrefixKey
from core.api.sequence_record import CacheMiss
from core.api.specs import KVGroup
from core.api.step_plan import Int32Array, StateCopy
from core.kv.block_checks import check_blocks
from core.kv.block_keys import BlockKeys
from core.kv.block_pool import BlockPool
from core.kv.block_registry import BlockRegistry
from core.kv.block_tables import NewBlocks, make_tables
from core.kv.connector import Copy, KVConnector
from core.kv.connectors import KVConnectors
from core.kv.explainer import CacheView
from core.kv.groups import longest_sequence
from core.kv.growth import growth_of
from core.kv.prefix import PrefixSearch
from core.kv.prefix_hit import PrefixHit
from core.kv.prefix_needs import PrefixNeeds
from core.kv.sequence import KVSequence
from core.kv.snapshots import MIN_INTERVAL, Snapshots
from core.kv.state_copies import StateCopies

Found = TypeVar("Found", bound=PrefixHit | KVLoad)


class KVManager:
    """The KV cache of one scheduler: block tables of `block_size` tokens an entry, one for each KV group.

    Block 0 is reserved. A scheduler that starts over makes a new manager.

    groups: KV groups; empty: a single group that keeps every token.
    max_step_tokens: maximum tokens of one sequence in a step, drafts included.
    connectors: sources and destinations of pages outside the pool, and observers of cached blocks.
    snapshot_interval: minimum number of tokens between two cached states inside a prompt; None: `MIN_INTERVAL`.
    snapshot_every: states after multiples of this number of tokens are kept as well; 0: none.
    eviction, share: see `BlockPool`.

    loads: the waits of sequences for pages.
    states: locations of the sequences' states, and the copies of them that the next plan makes.
    snapshots: the cached states; None without states, or without prefix caching.
    capacity: tokens of the longest sequence that fits.
    num_growing: groups that take more blocks as a sequence grows: all but those of states.
    num_query_tokens: tokens looked up in the prefix cache, over all admissions.
    num_hit_tokens: tokens served by it.
    num_external_tokens: those of them whose pages came from a connector.
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
        connectors: KVConnectors | None = None,
        snapshot_interval: int | None = None,
        snapshot_every: int = 0,
        eviction: str = "lru",
        share: float = 1.0,
    ) -> None:
        if block_size < 1:
            raise ConfigError([f"The block size is {block_size} tokens; expected at least 1."])
        self.groups = tuple(groups) or (KVGroup("full", (0,)),)
        self.growth = tuple(growth_of(group, block_size, max_step_tokens) for group in self.groups)
        num_groups = len(self.groups)
        # The last table is that of the states.
        self.pool = BlockPool(num_blocks, num_groups + 1, eviction=eviction, share=share)
        self.states = StateCopies(self.groups, self.pool.pending)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        has_states = self.states.num_blocks > 0
        self.connectors = KVConnectors() if connectors is None else connectors
        self.loads = self.connectors.loads
        # Before the pool has observers: loads and copies of an earlier manager end here, and must not reach this one.
        self.connectors.begin_pool(keeps_pages=enable_prefix_caching)
        if self.connectors.hears:
            self.pool.observers = (self.connectors,)
        self.num_query_tokens = self.num_hit_tokens = self.num_external_tokens = 0
        self.capacity = longest_sequence(self.groups, block_size, max_step_tokens, self.pool.capacity)
        self._keys = BlockKeys(hash_algorithm, block_size)
        num_keyed = sum(rule.holds_slots for rule in self.growth)
        pool, missing = self.pool, self.connectors.missing
        view = CacheView(
            self._keys, pool.prefixes, self.growth, block_size, num_blocks, has_states, pool.was_over_share, missing
        )
        self._explainer = self.connectors.explainer(view) if enable_prefix_caching else None
        remember = None if self._explainer is None else self._explainer.remember
        self._registry = BlockRegistry(
            self.pool, self._keys, block_size, num_keyed, enabled=enable_prefix_caching, remember=remember
        )
        self._tables = make_tables(self.pool, self.growth, block_size, self._registry)
        self.num_growing = self._tables.num_growing
        self.snapshots: Snapshots | None = None
        if has_states and enable_prefix_caching:
            interval = snapshot_interval or MIN_INTERVAL
            self.snapshots = Snapshots(
                self.pool, self._keys, self._registry, self.states, block_size, num_groups, interval, snapshot_every
            )
        needs = PrefixNeeds(self.growth, block_size, self.states.num_blocks)
        pages = self.connectors if self.connectors.has_pages else None
        self._search = PrefixSearch(
            needs, num_groups, block_size, self._keys, self.pool.prefixes, pages, self.snapshots, num_keyed
        )
        self._adopt_kept()

    @property
    def usage(self) -> float:
        """Fraction of blocks in use, in [0, 1]; cached blocks without a user count as free."""
        return 1.0 - self.pool.num_free / self.pool.capacity

    def lookup(self, sequence: KVSequence) -> PrefixHit | KVLoad:
        """Look up the longest cached prefix; at least one token is left to compute. Takes no blocks.

        Returns a hit of 0 tokens for an unknown prefix, and a `KVLoad` when pages may have to be read first: the sequence then
        waits until `Loads.over` yields it and looks again.

        O(hit blocks), plus the blocks with which others started since the last look-up; when a load begins, O(blocks of
        the sequence).
        """
        return self._find(sequence, self._search.find)

    def lookup_now(self, sequence: KVSequence) -> PrefixHit:
        """Look up the longest prefix that is in memory, for a sequence that does not wait."""
        return self._find(sequence, self._search.find_now)

    def no_hit(self) -> PrefixHit:
        """Return the empty hit, for a sequence that does not use the prefix cache."""
        return PrefixHit(0, [[] for _ in self.groups])

    def miss(self, sequence: KVSequence, hit: PrefixHit) -> CacheMiss | None:
        """Return why the token after `hit`, which `lookup` has just returned, is not cached; None without an explainer.

        Changes nothing. O(1), or O(blocks of the prefix) when it may report on other tenants.
        """
        if not self.enable_prefix_caching:
            return CacheMiss(0, "caching_off")
        return None if self._explainer is None else self._explainer.find(sequence, hit)

    def blocks_missing(self, hit: PrefixHit, num_tokens: int) -> int:
        """Return how many free blocks a sequence of `num_tokens` tokens takes when it shares `hit`."""
        return self._tables.num_missing(hit, num_tokens)

    def attach(self, sequence: KVSequence, hit: PrefixHit) -> None:
        """Start the block tables of a sequence with the blocks of `hit`, whose tokens count as computed.

        The caller has checked that `blocks_missing` blocks are free.
        """
        self.num_query_tokens += len(sequence.token_ids)
        self.num_hit_tokens += hit.num_tokens
        for observer in self.pool.observers:
            for ids in (*hit.block_ids, hit.state):
                # Block 0, the null block, stands for entries that no query reads.
                for block_id in filter(None, ids):
                    observer.reused(block_id)
        self._tables.start(sequence, hit)
        # After `start`, which allocates the blocks that the state is copied to.
        if self.snapshots is not None:
            if hit.state:
                self.snapshots.restore(sequence, hit.num_tokens, hit.state)
            elif hit.state_pages:
                self.snapshots.begin(sequence, hit.num_tokens)
        sequence.num_forked_tokens = hit.num_known_tokens
        if hit.loads or hit.state_pages:
            # These blocks count as cached before their bytes arrive: the next plan makes its copies first, and all later plans
            # follow it. If its step fails, `settle_transfers` takes the blocks out of the cache again.
            self._fill(sequence, hit)
        self._end_load(sequence)
        sequence.num_computed_tokens = hit.num_tokens
        sequence.num_planned_tokens = hit.num_tokens
        sequence.num_shared_blocks = hit.num_tokens // self.block_size
        sequence.num_registered_blocks = sequence.num_shared_blocks
        sequence.num_initial_tokens = len(sequence.token_ids)
        self._registry.begin(sequence)

    def allocate_slots(self, sequence: KVSequence, num_new_tokens: int, num_lookahead: int = 0) -> NewBlocks | None:
        """Make room for `num_new_tokens` after the computed ones and for `num_lookahead` further positions.

        Returns the ids of appended blocks, one list for each group, or an empty list when there was room; None, with
        nothing appended, when too few blocks are free.
        """
        end = sequence.num_computed_tokens + num_new_tokens + num_lookahead
        if end <= sequence.num_slots:
            return []
        return self._tables.extend(sequence, end)

    def allocate_next(self, sequences: Sequence[KVSequence], lengths: Sequence[int]) -> list[NewBlocks] | None:
        """Make room for one more token in each of these sequences, whose blocks are all full.

        Each then has room for `lengths` tokens. Returns the result of `allocate_slots` for each; None, with nothing taken, when
        blocks may be too few for all.
        """
        # An upper bound: sliding groups may free blocks meanwhile. Too cautious is harmless, since the caller then goes one
        # by one.
        if len(sequences) * self.num_growing > self.pool.num_free:
            return None
        return self._tables.extend_all(sequences, lengths)

    def free(self, sequence: KVSequence, *, keep_cached: bool = True, at_rest: bool = False) -> None:
        """Free all blocks of a sequence, its tail first; none of its tokens counts as computed any more.

        keep_cached: False when the values may be wrong: blocks that it has computed itself are then no longer cached.
        at_rest: whether its state is that after its computed tokens: no step is under way that advances it.
        """
        # First, because offering blocks reads the tables and the count of computed tokens, which end below.
        self._registry.leave(sequence, keep_cached=keep_cached)
        if self.snapshots is not None and keep_cached and at_rest and not sequence.is_rolled_back:
            self.snapshots.adopt(sequence)
        self._tables.clear(sequence)
        if self.snapshots is not None:
            self.snapshots.leave(sequence, keep_cached=keep_cached)
        sequence.num_saved_tokens = -1
        sequence.is_rolled_back = False
        self._end_load(sequence)
        sequence.num_computed_tokens = 0
        sequence.num_planned_tokens = 0
        sequence.num_registered_blocks = 0
        sequence.num_shared_blocks = 0

    def reset(self) -> bool:
        """Drop all cached prefixes, in connectors too; False, and no change, while any block is in use."""
        if not self.pool.reset():
            return False
        self.connectors.cleared()
        return True

    def take_transfers(self) -> KVTransfers | None:
        """Return the copies for the next plan that computes something, or None. Its worker makes them before anything else.

        Each result needs one call of `settle_transfers`.
        """
        return self.connectors.copies.take()

    def keep_states(
        self, sequences: Sequence[KVSequence], slots: Int32Array, num_computed: Int32Array
    ) -> dict[int, list[list[int]]]:
        """Keep the states of decodes whose next step begins at a block edge, if they are worth it. num_computed: before it.

        Returns, by slot, the blocks of each group to which that step moves a state; empty lists for groups without states.
        """
        assert self.snapshots is not None, "there are states to keep"
        found: dict[int, list[list[int]]] = {}
        for row in (num_computed % self.block_size == 0).nonzero()[0].tolist():
            sequence = sequences[row]
            if self.snapshots.keep(sequence, int(num_computed[row]), moves=True):
                tables = zip(self.groups, sequence.block_ids, strict=True)
                found[int(slots[row])] = [ids.copy() if group.kind == "state" else [] for group, ids in tables]
        return found

    def take_copies(self) -> list[StateCopy]:
        """Return the copies of states for the next plan that computes something."""
        if self.snapshots is not None:
            self.snapshots.release()
        return self.states.take()

    def settle_transfers(self, transfers: KVTransfers, pages: list[Page] | None) -> None:
        """Accept the saved pages. None: the copies were not made, so the blocks to be loaded are no longer cached."""
        self.connectors.settle(transfers, pages)
        if pages is None:
            self.forget(block_id for block_id, _ in transfers.loads)

    def cached_blocks(self) -> Iterable[tuple[int, int, PrefixKey]]:
        """Return (block id, group, key) of every cached block."""
        for block_id, group, key in self.pool.prefixes.entries():
            for place, part in enumerate(self.pool.parts(block_id)):
                yield part, group + place, key

    def save(self, block_id: int, group: int, key: PrefixKey, connector: KVConnector) -> None:
        """Have the next step return the bytes of a cached block to a connector.

        To be called between steps: steps in flight write the block before the copies of the next one are made.
        """
        if block_id in self.pool.pending:
            connector.lost(group, key)  # the next plan saves before it copies, so that the block would not be written
        else:
            self.connectors.copies.save_cached(block_id, group, key, connector)

    def copy_now(self, copy: Copy) -> bool:
        """Make the copies that wait for the next step now; False when that failed."""
        transfers = self.take_transfers()
        if transfers is None:
            return True
        pages = copy(transfers)
        self.settle_transfers(transfers, pages)
        return pages is not None

    def register_starting(self) -> None:
        """Offer the blocks that sequences start with, as far as they are planned, to the prefix table."""
        self._registry.offer_starting()

    def take_unwritten(self) -> list[int]:
        """Return the blocks offered since the last call although the steps that write them have no result yet.

        The caller passes them to `forget` when one of those steps fails.
        """
        return self._registry.take_unwritten()

    def forget(self, block_ids: Iterable[int]) -> None:
        """Remove blocks from the prefix table."""
        self._registry.forget(block_ids)

    def key(self, sequence: KVSequence, index: int) -> PrefixKey:
        """Return the key of a full block, computed once for each sequence."""
        return self._keys.key(sequence, index)

    def check_integrity(self, sequences: Iterable[KVSequence]) -> None:
        """Raise `IntegrityError` unless pool, tables, groups and connectors agree. O(blocks).

        sequences: all that may hold blocks.
        """
        check_blocks(self._tables, sequences)
        self.connectors.check_integrity(self.pool.num_blocks)

    def _find(self, sequence: KVSequence, search: Callable[[KVSequence], Found]) -> Found | PrefixHit:
        """Return the result of a search, whose blocks are what was cached."""
        if not self.enable_prefix_caching:
            return self.no_hit()
        self._registry.offer_starting()
        found = search(sequence)
        while isinstance(found, PrefixHit) and self._drops_damaged(found):
            found = search(sequence)
        return found

    def _adopt_kept(self) -> None:
        """Cache the blocks whose bytes an earlier engine left in the memory of this pool, which is empty."""
        kept = self.connectors.kept_blocks()
        num_groups = len(self.groups)
        entries: dict[tuple[int, PrefixKey], list[tuple[int, int]]] = {}
        for block_id, group, key, _ in kept:
            # Pages of a state have groups after those of the tables, and are one entry of the last table.
            entries.setdefault((min(group, num_groups), key), []).append((group, block_id))
        unused = set(self.pool.allocate(max((block_id for block_id, *_ in kept), default=0)))
        for (table, key), pages in entries.items():
            ids = [block_id for _, block_id in sorted(pages)]
            is_whole = len(ids) == (self.states.num_blocks if table == num_groups else 1)
            if is_whole and self.pool.cache(key, ids[0], table, size=len(ids)):
                if table == num_groups:
                    self.pool.join(ids)
                self.pool.free(ids[:1])
                unused.difference_update(ids)
        self.pool.free(sorted(unused, reverse=True))
        for block_id, group, key, parent in kept:
            for observer in () if block_id in unused else self.pool.observers:
                observer.stored(block_id, group, key, parent)

    def _drops_damaged(self, hit: PrefixHit) -> bool:
        """Whether a hit has blocks that are not what was cached; these are no longer cached."""
        found = [block_id for ids in hit.block_ids for block_id in self.connectors.damaged(ids)]
        if self.connectors.damaged(hit.state):
            found.append(hit.state[0])
        self.forget(found)
        return bool(found)

    def _fill(self, sequence: KVSequence, hit: PrefixHit) -> None:
        """Have the next plan copy pages to the blocks that were allocated for them."""
        for load in hit.loads:
            block_id = sequence.block_ids[load.group][load.entry]
            self._registry.cache(sequence, load.group, load.entry, block_id)
            self.connectors.copies.load(block_id, load.page)
        if hit.state_pages:
            for block_id, page in zip(self.states.blocks(sequence), hit.state_pages, strict=True):
                self.connectors.copies.load(block_id, page)
        # Entries, not loads: several groups load their blocks for the same tokens.
        entries = {load.entry for load in hit.loads}
        self.num_external_tokens += len(entries) * self.block_size

    def _end_load(self, sequence: KVSequence) -> None:
        """End the load of a sequence whose pages are in its blocks, or that no longer waits."""
        if sequence.load is not None:
            self.loads.end(sequence.load)
            sequence.load = None
