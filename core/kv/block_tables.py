"""Block tables of sequences, in all groups.

Owns: `BlockTables`: allocating blocks of the pool into tables and freeing them. Never does: look prefixes up, hash.
Called by: the manager.

Nearly every model has a single group that keeps every token. Its tables only ever grow, while a decode step is planned:
`PlainTables` is the fast path for that case, and no other place depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from core.kv.block_pool import NULL_BLOCK, BlockPool
from core.kv.block_registry import BlockRegistry
from core.kv.eviction import worth_of
from core.kv.group_table import GroupTable
from core.kv.growth import FullGrowth, Growth
from core.kv.integrity import require
from core.kv.prefix_hit import PrefixHit
from core.kv.sequence import KVSequence

ANY_NUMBER = 1 << 30

NewBlocks = list[list[int]]
"""Ids of appended blocks, one list for each KV group."""


class BlockTables:
    """Tables of any groups, with `block_size` tokens an entry; owned by the manager.

    groups:      rules of the tables of each group.
    num_growing: groups that take more blocks as a sequence grows: all but those of states.
    """

    def __init__(self, pool: BlockPool, growth: Sequence[Growth], block_size: int, registry: BlockRegistry) -> None:
        self.pool = pool
        self.block_size = block_size
        self.groups = tuple(GroupTable(group, rule) for group, rule in enumerate(growth))
        self.num_growing = sum(rule.holds_slots for rule in growth)
        self._registry = registry

    def num_missing(self, hit: PrefixHit, num_tokens: int) -> int:
        """Return how many free blocks a sequence of `num_tokens` tokens takes when it shares `hit`."""
        # A page from a connector needs a new block, although the token counts as found.
        count = len(hit.loads)
        for table, ids in zip(self.groups, hit.block_ids, strict=True):
            shared = filter(None, ids)  # without null blocks, which have no references
            # An evictable block counts as free, so sharing it takes one of the free blocks.
            count += self.pool.num_evictable(shared)
            count += table.num_missing_after(len(ids), hit.num_tokens, num_tokens)
        return count

    def start(self, sequence: KVSequence, hit: PrefixHit) -> None:
        """Give a sequence the blocks of a hit, and new blocks, for the caller to fill, where a connector has the page."""
        sequence.block_ids = [ids.copy() for ids in hit.block_ids]
        worth = worth_of(len(sequence.token_ids))
        for ids in sequence.block_ids:
            shared = [block_id for block_id in ids if block_id != NULL_BLOCK]
            self.pool.touch(shared)
            self.pool.hit(shared, worth)
        # After every `touch`: an allocation may evict, and must not evict the blocks of this very hit.
        if hit.loads:
            new_ids = self.pool.allocate(len(hit.loads))
            for load, block_id in zip(hit.loads, new_ids, strict=True):
                ids = sequence.block_ids[load.group]
                ids[load.entry] = block_id
        if hit.state or hit.state_pages:
            self._take_states(sequence)
        # Entries before a window are null blocks in a hit, as in a table whose window has passed them.
        sequence.num_released = [table.growth.first_needed(hit.num_tokens) for table in self.groups]
        sequence.num_slots = hit.num_tokens

    def _take_states(self, sequence: KVSequence) -> None:
        """Allocate the blocks of a sequence's states."""
        for table in self.groups:
            if not table.growth.holds_slots:
                count = table.growth.max_blocks(0)
                sequence.block_ids[table.group] = self.pool.allocate(count)

    def extend(self, sequence: KVSequence, end: int) -> NewBlocks | None:
        """Free the blocks before the windows, then append what is missing up to position `end`.

        None, with nothing appended, when too few blocks are free.
        """
        # First, because the blocks that are freed here may serve the growth below.
        self._release_passed(sequence)
        if not sequence.block_ids:
            sequence.block_ids = [[] for _ in self.groups]
            sequence.num_released = [0] * len(self.groups)
        counts = [table.num_missing(sequence, end) for table in self.groups]
        num_missing = sum(counts)
        # Checked for all groups together: with blocks for some of them only, the sequence would have to give them back.
        if num_missing > self.pool.num_free:
            return None
        block_ids = self.pool.allocate(num_missing)
        appended: NewBlocks = []
        start = 0
        for ids, count in zip(sequence.block_ids, counts, strict=True):
            stop = start + count
            new_ids = block_ids[start:stop]
            ids.extend(new_ids)
            appended.append(new_ids)
            start = stop
        sequence.num_slots = self.num_slots(sequence)
        return appended

    def extend_all(self, sequences: Sequence[KVSequence], lengths: Sequence[int]) -> list[NewBlocks]:
        """Make room for `lengths` tokens in each of these sequences, for which there are enough blocks."""
        grown: list[NewBlocks] = []
        for sequence, length in zip(sequences, lengths, strict=True):
            appended: NewBlocks | None = []
            if length > sequence.num_slots:
                appended = self.extend(sequence, length)
            require(appended is not None, "growth", "one token took more than a block of each group")
            grown.append(appended or [])
        return grown

    def clear(self, sequence: KVSequence) -> None:
        """Free all blocks of a sequence, its tail first."""
        if sequence.block_ids:
            self.pool.free(self._tail_first(sequence))
        sequence.block_ids = []
        sequence.num_released = []
        sequence.num_slots = 0

    def num_slots(self, sequence: KVSequence) -> int:
        """Return the positions that all tables of a sequence have room for; `ANY_NUMBER` for a model with states only."""
        lengths: list[int] = []
        for table in self.groups:
            if table.growth.holds_slots:
                ids = sequence.block_ids[table.group]
                lengths.append(len(ids))
        if not lengths:
            return ANY_NUMBER
        return min(lengths) * self.block_size

    def _release_passed(self, sequence: KVSequence) -> None:
        """Free the blocks that no later query's window reaches; full ones stay cached."""
        for group in range(len(sequence.block_ids)):
            table = self.groups[group]
            first = table.growth.first_needed(sequence.num_computed_tokens)
            if first > sequence.num_released[group]:
                # Before they are freed: a block in use can be cached, a spare one cannot.
                self._registry.offer(sequence, first)
                self.pool.free(table.release(sequence, first))

    def _tail_first(self, sequence: KVSequence) -> Iterator[int]:
        """Yield the blocks of all tables, last ones first, so that a prefix loses its end first."""
        tables = sequence.block_ids
        longest = max(len(ids) for ids in tables)
        for index in reversed(range(longest)):
            for ids in tables:
                if index < len(ids) and ids[index] != NULL_BLOCK:
                    yield ids[index]


class PlainTables(BlockTables):
    """The tables of one group that keeps every token: nothing is ever released before the end."""

    def extend(self, sequence: KVSequence, end: int) -> NewBlocks | None:
        """Append the missing blocks; None, with nothing appended, when too few are free."""
        num_tokens = end - sequence.num_slots
        count = -(-num_tokens // self.block_size)
        if count > self.pool.num_free:
            return None
        block_ids = self.pool.allocate(count)
        if sequence.block_ids:
            sequence.block_ids[0] += block_ids
        else:
            sequence.block_ids = [block_ids.copy()]
            sequence.num_released = [0]
        sequence.num_slots += count * self.block_size
        return [block_ids]

    def extend_all(self, sequences: Sequence[KVSequence], lengths: Sequence[int]) -> list[NewBlocks]:
        """Append one block to each: all their blocks are full, and one more token needs room."""
        grown: list[NewBlocks] = []
        new_ids = self.pool.allocate(len(sequences))
        for sequence, block_id in zip(sequences, new_ids, strict=True):
            sequence.block_ids[0].append(block_id)
            sequence.num_slots += self.block_size
            grown.append([[block_id]])
        return grown

    def _tail_first(self, sequence: KVSequence) -> Iterator[int]:
        return reversed(sequence.block_ids[0])


def make_tables(pool: BlockPool, growth: Sequence[Growth], block_size: int, registry: BlockRegistry) -> BlockTables:
    """Build the tables of groups that grow like `growth`."""
    is_plain = len(growth) == 1 and isinstance(growth[0], FullGrowth)
    kind = PlainTables if is_plain else BlockTables
    return kind(pool, growth, block_size, registry)
