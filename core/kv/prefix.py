"""Search for the longest prefix of a sequence that the cache can serve.

Owns: the search over blocks and connectors. Never does: take blocks, or read from slow storage: a sequence whose prefix may
be there gets a `KVLoad` to wait for. Called by: the manager.
"""

from __future__ import annotations

import time
from functools import partial

from core.api.kv_load import Entry, Has, KVLoad
from core.api.kv_transfer import Page, PrefixKey
from core.kv.block_keys import AHEAD, BlockKeys
from core.kv.block_pool import NULL_BLOCK
from core.kv.connectors import KVConnectors
from core.kv.prefix_hit import PageLoad, PrefixHit
from core.kv.prefix_needs import PrefixNeeds
from core.kv.prefix_table import PrefixTable
from core.kv.sequence import MAX_WAITS, KVSequence
from core.kv.snapshots import Snapshots

MAX_HOLDING = 8
"""Limit of loads that keep pages of a connector's memory, which would otherwise grow with the number that wait."""
PAUSE_S = 0.0001
"""Pause after `AHEAD` keys, which take about 50 us."""


class PrefixSearch:
    """The prefix search of one manager, by keys of blocks.

    needs:    blocks of each group that a prefix needs.
    keys:     keys of a sequence's blocks.
    prefixes: the cached blocks.
    pages:    connectors with pages; None when there are none.
    snapshots: cached states; None for a model without states.
    num_keyed: number of groups with keys, which come first; the others have states.
    """

    def __init__(
        self,
        needs: PrefixNeeds,
        num_groups: int,
        block_size: int,
        keys: BlockKeys,
        prefixes: PrefixTable,
        pages: KVConnectors | None,
        snapshots: Snapshots | None = None,
        num_keyed: int | None = None,
    ) -> None:
        self._snapshots = snapshots
        self._num_keyed = num_groups if num_keyed is None else num_keyed
        self._needs = needs
        self._num_groups = num_groups
        self._block_size = block_size
        self._leading: list[list[int]] = []
        self._keys = keys
        self._prefixes = prefixes
        self._pages = pages

    def find(self, sequence: KVSequence) -> PrefixHit | KVLoad:
        """Search memory and connectors; at least one token of the sequence is left to compute.

        Returns a load, which may begin here, when a connector may have more of the prefix than memory has. A sequence whose
        load is done gets a hit with the loaded pages.
        """
        if self._pages is None:
            return self.find_now(sequence)
        most = self._begin(sequence)
        has = partial(self._has, sequence)
        load = sequence.load
        if load is not None and load.is_done and not load.in_pool:
            # It has waited for copies or keys alone; a connector may have more.
            self._pages.loads.end(load)
            sequence.prefix_keys = list(load.keys) or sequence.prefix_keys
            load = sequence.load = None
        num_blocks = self._needs.longest(most, has)
        if num_blocks < most:
            if load is None:
                load = self._await_copies(sequence, num_blocks, most, self._pages)
                load = load or self._start_load(sequence, most, has, self._pages)
                if load is not None:
                    return load
            elif not load.is_done:
                return load
        return self.find_now(sequence)

    def find_now(self, sequence: KVSequence) -> PrefixHit:
        """Search in memory only."""
        most = self._begin(sequence)
        lost: set[Entry] = set()

        def has(group: int, index: int) -> bool:
            return self._has(sequence, group, index) and (group, index) not in lost

        while True:
            num_known = self._needs.known(most, has)
            num_blocks = self._needs.served(num_known, has)
            hit = self._gather(sequence, num_blocks)
            # A page may be gone, or have a wrong size, although `contains` reported it: search again without that entry.
            if isinstance(hit, PrefixHit):
                hit.num_known_tokens = num_known * self._block_size
                return hit
            # Even if the connector reports it again: each turn must exclude an entry, so that the search ends.
            lost.add(hit)

    def _begin(self, sequence: KVSequence) -> int:
        """Note which leading blocks are cached, and return the largest number of blocks that a prefix may have."""
        # One less than all tokens, because at least one has to be computed to give logits.
        most = (len(sequence.token_ids) - 1) // self._block_size
        find, key_of = self._prefixes.find, partial(self._keys.key, sequence)
        self._leading = [[] for _ in range(self._num_keyed)]
        for group, leading in enumerate(self._leading):
            while len(leading) < most and (found := find(key_of(len(leading)), group)) is not None:
                leading.append(found)
        return most

    def _await_copies(self, sequence: KVSequence, num_blocks: int, most: int, pages: KVConnectors) -> KVLoad | None:
        """Wait for pages of blocks that were evicted by this step, or one in flight; None: they make `num_blocks` no more."""
        leaving = pages.copies.leaving

        def has(group: int, index: int) -> bool:
            return self._has(sequence, group, index) or (group, self._keys.key(sequence, index).digest) in leaving

        if not leaving or sequence.num_waits >= MAX_WAITS or self._needs.longest(most, has) <= num_blocks:
            return None
        sequence.num_waits += 1
        sequence.load = KVLoad(self._needs, (), pages.loads.done)
        pages.loads.await_copies(sequence.load)
        return sequence.load

    def _hash_ahead(self, sequence: KVSequence, most: int, pages: KVConnectors) -> KVLoad:
        """Wait for a thread to compute the keys of a long prompt, which would hold up all others while a step is planned."""
        sequence.num_waits += 1
        # The thread has a sequence of its own; the next look-up takes its keys.
        common = (sequence.token_ids, sequence.cache_salt, sequence.extras, "", sequence.tenant)
        ahead = KVSequence(*common, sequence.num_public_tokens)
        load = sequence.load = KVLoad(self._needs, (), pages.loads.done)

        def hash_all() -> None:
            for index in range(AHEAD - 1, most, AHEAD):
                self._keys.key(ahead, index)
                # A switch of threads takes 5 ms unless the thread that hashes lets the other one go on.
                time.sleep(PAUSE_S)
            load.keys = ahead.prefix_keys

        pages.loads.await_keys(load, hash_all)
        return load

    def _start_load(self, sequence: KVSequence, most: int, has: Has, pages: KVConnectors) -> KVLoad | None:
        """Start loading everything that the longest prefix needs and memory lacks.

        Returns None when no connector seems to have more. Each is queried for one block only, so that an unknown prompt is
        computed at once.
        """

        def gap() -> tuple[int, PrefixKey] | None:
            missing = self._needs.first_gap(most, has)
            if missing is None:
                return None
            group, index = missing
            return group, self._keys.key(sequence, index)

        connector = pages.loader(gap)
        if connector is None:
            return None
        if most - len(sequence.prefix_keys) > AHEAD and sequence.num_waits < MAX_WAITS:
            return self._hash_ahead(sequence, most, pages)
        self._keys.key(sequence, most - 1)
        load = KVLoad(self._needs, sequence.prefix_keys[:most], pages.loads.done)
        for group in range(self._num_keyed):
            load.in_pool.append(self._snapshot(load, group, pages))
        load.in_pool += [bytearray(most)] * (self._num_groups - self._num_keyed)
        if self._snapshots is not None:
            states = bytearray(bool(self._snapshots.find(key)) for key in load.keys)
            load.in_pool += [states] * self._snapshots.num_pages
        sequence.load = load
        pages.loads.start(connector, load)
        return load

    def _snapshot(self, load: KVLoad, group: int, pages: KVConnectors) -> bytearray:
        """Return which blocks of a group are cached, one byte each, and copy pages in memory into the load."""
        in_pool = bytearray(len(load.keys))
        for index, key in enumerate(load.keys):
            if self._prefixes.find(key, group) is not None:
                in_pool[index] = 1
                continue
            if len(pages.loads.owners) >= MAX_HOLDING:
                in_pool[index] = pages.contains(group, key)
                continue
            # The load keeps the page, because the connector may have dropped it by the time the load is done.
            page = pages.get(group, key)
            if page is not None:
                load.pages[group, index] = page
                load.in_memory.add((group, index))
        return in_pool

    def _has(self, sequence: KVSequence, group: int, index: int) -> bool:
        """Whether a block, or its page, is in memory."""
        if group < self._num_keyed and index < len(self._leading[group]):
            return True
        key = self._keys.key(sequence, index)
        # Group `num_groups` + i is page i of a state; the first stands for all that are in the pool, under its number.
        if self._prefixes.find(key, min(group, self._num_groups)) is not None:
            return True
        if self._pages is None:
            return False
        if sequence.load is not None and (group, index) in sequence.load.pages:
            return True
        return self._pages.contains(group, key)

    def _gather(self, sequence: KVSequence, num_blocks: int) -> PrefixHit | Entry:
        """Return the hit of a prefix, or the first entry whose page has left memory since it was seen."""
        hit = PrefixHit(num_blocks * self._block_size, [])
        for group in range(self._num_keyed):
            first = self._needs.first(group, num_blocks)
            leading = [] if first else self._leading[group][:num_blocks]
            ids = leading + [NULL_BLOCK] * (num_blocks - len(leading))
            for index in range(max(first, len(leading)), num_blocks):
                block_id = self._prefixes.find(self._keys.key(sequence, index), group)
                if block_id is not None:
                    ids[index] = block_id
                    continue
                page = self._page(sequence, group, index)
                if page is None:
                    return group, index
                was_awaited = sequence.load is not None and sequence.load.was_read(group, index)
                hit.loads.append(PageLoad(group, index, page, was_awaited))
            hit.block_ids.append(ids)
        hit.block_ids += [[] for _ in range(self._num_groups - self._num_keyed)]
        if num_blocks and self._snapshots is not None:
            hit.state = self._snapshots.find(self._keys.key(sequence, num_blocks - 1))
            num_pages = 0 if hit.state else self._snapshots.num_pages
            for group in range(self._num_groups, self._num_groups + num_pages):
                page = self._page(sequence, group, num_blocks - 1)
                if page is None:
                    return group, num_blocks - 1
                hit.state_pages.append(page)
        return hit

    def _page(self, sequence: KVSequence, group: int, index: int) -> Page | None:
        """Return a page that is in memory and has the right size, or None."""
        if self._pages is None:
            return None
        page = self._pages.get(group, self._keys.key(sequence, index))
        if page is None and sequence.load is not None:
            page = sequence.load.pages.get((group, index))
        return page if page is None or self._pages.fits(page) else None
