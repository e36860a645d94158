"""The longest prefix of a sequence that the cache can serve.

Owns: `PrefixHit` and the search for it over blocks and tiers. Never does: take blocks, or read from a disk: a sequence
whose prefix may lie there gets a `KVLoad` to wait for. Called by: the manager.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from core.api.kv_transfer import Page
from core.kv.block_keys import BlockKeys
from core.kv.block_pool import NULL_BLOCK
from core.kv.prefix_needs import Has, PrefixNeeds
from core.kv.prefix_table import PrefixTable
from core.kv.sequence import KVSequence
from core.kv.snapshots import Snapshots
from core.kv.tiers.kv_load import KVLoad
from core.kv.tiers.page_source import PageSource


class PageLoad(NamedTuple):
    """A block that a tier has: its values, and the entry of the table of `group` that it belongs to.

    from_disk: whether the sequence has waited for it.
    """

    group: int
    entry: int
    page: Page
    from_disk: bool = False


@dataclass(slots=True)
class PrefixHit:
    """A prefix of `num_tokens` tokens: the start of each group's table, and pages to load where that has a 0.

    Entries that no later query reads are 0 (the null block) and have no page. The tables of states have none: the sequence
    gets a copy of the blocks in `state`.

    num_known_tokens: of the longest prefix that groups which keep every token have, whether there is a state or not.
    """

    num_tokens: int
    block_ids: list[list[int]]
    loads: list[PageLoad] = field(default_factory=list)
    state: list[int] = field(default_factory=list)
    num_known_tokens: int = 0


class PrefixSearch:
    """Looks for the blocks of prefixes under their keys.

    needs:    what of each group a prefix needs.
    keys:     of a sequence's blocks.
    prefixes: the cached blocks.
    pages:    of the tiers; None when there are none.
    snapshots: of the states; None for a model without.
    num_keyed: groups with keys, which come first; the others have states.
    """

    def __init__(
        self,
        needs: PrefixNeeds,
        num_groups: int,
        block_size: int,
        keys: BlockKeys,
        prefixes: PrefixTable,
        pages: PageSource | None,
        snapshots: Snapshots | None = None,
        num_keyed: int | None = None,
    ) -> None:
        self._snapshots = snapshots
        self._num_keyed = num_groups if num_keyed is None else num_keyed
        self._needs = needs
        self._num_groups = num_groups
        self._block_size = block_size
        self._keys = keys
        self._prefixes = prefixes
        self._pages = pages

    def find(self, sequence: KVSequence) -> PrefixHit | KVLoad:
        """Search; at least one token of the sequence is left to compute.

        A load, which may begin here, when tiers may have more of the prefix than memory has. A sequence whose load is done
        gets what has come of it.
        """
        if self._pages is None:
            return self.find_now(sequence)
        most = self._most(sequence)
        has = partial(self._has, sequence)
        if self._needs.longest(most, has) < most:
            if sequence.load is None and self._may_have_more(sequence, most, has, self._pages):
                return self._start_load(sequence, most, self._pages)
            if sequence.load is not None and not sequence.load.is_done:
                return sequence.load
        return self.find_now(sequence)

    def find_now(self, sequence: KVSequence) -> PrefixHit:
        """Search in memory alone."""
        most = self._most(sequence)
        has = partial(self._has, sequence)
        while True:
            num_known = self._needs.known(most, has)
            num_blocks = self._needs.served(num_known, has)
            hit = self._gather(sequence, num_blocks)
            if hit is not None:
                hit.num_known_tokens = num_known * self._block_size
                return hit

    def _most(self, sequence: KVSequence) -> int:
        return (len(sequence.token_ids) - 1) // self._block_size

    def _may_have_more(self, sequence: KVSequence, most: int, has: Has, pages: PageSource) -> bool:
        """Whether to wait for a disk. A single glance at it, so that a prompt that nobody knows is computed at once."""
        if not pages.answers():
            return False
        gap = self._needs.first_gap(most, has)
        if gap is None:
            return True
        group, index = gap
        return pages.may_load(group, self._keys.key(sequence, index))

    def _start_load(self, sequence: KVSequence, most: int, pages: PageSource) -> KVLoad:
        """Have everything read that the longest prefix needs and memory does not have."""
        self._keys.key(sequence, most - 1)
        load = KVLoad(self._needs, sequence.prefix_keys[:most])
        for group in range(self._num_groups):
            load.in_pool.append(self._snapshot(load, group, pages))
        sequence.load = load
        pages.start(load)
        return load

    def _snapshot(self, load: KVLoad, group: int, pages: PageSource) -> bytearray:
        """Which blocks of a group are cached. Pages in memory go into the load: they may have left it when that is done."""
        in_pool = bytearray(len(load.keys))
        for index, key in enumerate(load.keys):
            if self._prefixes.find(key, group) is not None:
                in_pool[index] = 1
                continue
            page = pages.read(group, key)
            if page is not None:
                load.pages[group, index] = page
                load.in_memory.add((group, index))
        return in_pool

    def _has(self, sequence: KVSequence, group: int, index: int) -> bool:
        """Whether a block, or its page, is in memory."""
        key = self._keys.key(sequence, index)
        if group >= self._num_keyed:
            return self._snapshots is not None and self._snapshots.find(key) is not None
        if self._prefixes.find(key, group) is not None:
            return True
        if self._pages is None:
            return False
        if sequence.load is not None and (group, index) in sequence.load.pages:
            return True
        return self._pages.has_in_memory(group, key)

    def _gather(self, sequence: KVSequence, num_blocks: int) -> PrefixHit | None:
        """Blocks and pages of a prefix; None when a page has left memory since it was seen."""
        hit = PrefixHit(num_blocks * self._block_size, [])
        for group in range(self._num_keyed):
            ids = [NULL_BLOCK] * num_blocks
            for index in range(self._needs.first(group, num_blocks), num_blocks):
                block_id = self._prefixes.find(self._keys.key(sequence, index), group)
                if block_id is not None:
                    ids[index] = block_id
                    continue
                page = self._page(sequence, group, index)
                if page is None:
                    return None
                from_disk = sequence.load is not None and sequence.load.was_read(group, index)
                hit.loads.append(PageLoad(group, index, page, from_disk))
            hit.block_ids.append(ids)
        num_states = self._num_groups - self._num_keyed
        hit.block_ids += [[] for _ in range(num_states)]
        if num_blocks and self._snapshots is not None:
            key = self._keys.key(sequence, num_blocks - 1)
            hit.state = self._snapshots.find(key) or []
        return hit

    def _page(self, sequence: KVSequence, group: int, index: int) -> Page | None:
        """A page that is in memory."""
        if self._pages is None:
            return None
        page = self._pages.read(group, self._keys.key(sequence, index))
        if page is None and sequence.load is not None:
            page = sequence.load.pages.get((group, index))
        return page
