"""The blocks that sequences hold, in all groups.

Owns: `BlockTables`: taking blocks from the pool into tables and giving them back. Never does: look prefixes up, hash.
Called by: the manager.

Nearly every model has a single group that keeps every token. Its tables only ever get longer, and they do in the middle of
a decode step: `PlainTables` is that case, and the only place that knows of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from core.kv.block_pool import NULL_BLOCK, BlockPool
from core.kv.block_registry import BlockRegistry
from core.kv.group_table import GroupTable
from core.kv.growth import FullGrowth, Growth
from core.kv.integrity import require
from core.kv.prefix_hit import PrefixHit
from core.kv.sequence import KVSequence

ANY_NUMBER = 1 << 30

NewBlocks = list[list[int]]
"""Ids of appended blocks, one list for each group."""


class BlockTables:
    """Tables of any groups, with `block_size` tokens an entry.

    groups:      the tables of each group.
    num_growing: groups that take more blocks as a sequence grows: all but those of states.
    """

    def __init__(self, pool: BlockPool, growth: Sequence[Growth], block_size: int, registry: BlockRegistry) -> None:
        self.pool = pool
        self.block_size = block_size
        self.groups = tuple(GroupTable(group, rule) for group, rule in enumerate(growth))
        self.num_growing = sum(rule.holds_slots for rule in growth)
        self._registry = registry

    def num_missing(self, hit: PrefixHit, num_tokens: int) -> int:
        """Free blocks that a sequence takes which holds `num_tokens` tokens and shares `hit`."""
        count = len(hit.loads)
        for table, ids in zip(self.groups, hit.block_ids, strict=True):
            shared = filter(None, ids)  # without null blocks, which nobody holds
            count += self.pool.num_evictable(shared)
            count += table.num_missing_after(len(ids), hit.num_tokens, num_tokens)
        return count

    def start(self, sequence: KVSequence, hit: PrefixHit) -> None:
        """Give a sequence the blocks of a hit; blocks whose pages a connector has are new ones, for the caller to fill."""
        sequence.block_ids = [ids.copy() for ids in hit.block_ids]
        for ids in sequence.block_ids:
            shared = filter(None, ids)
            self.pool.touch(shared)
        if hit.loads:
            new_ids = self.pool.allocate(len(hit.loads))
            for load, block_id in zip(hit.loads, new_ids, strict=True):
                ids = sequence.block_ids[load.group]
                ids[load.entry] = block_id
        if hit.state:
            self._take_states(sequence)
        sequence.num_released = [table.growth.first_needed(hit.num_tokens) for table in self.groups]
        sequence.num_slots = hit.num_tokens

    def _take_states(self, sequence: KVSequence) -> None:
        """Give a sequence the blocks of its states."""
        for table in self.groups:
            if not table.growth.holds_slots:
                count = table.growth.most_blocks(0)
                sequence.block_ids[table.group] = self.pool.allocate(count)

    def extend(self, sequence: KVSequence, end: int) -> NewBlocks | None:
        """Release what lies behind the windows, then append what is missing up to position `end`.

        None, with nothing appended, when too few blocks are free.
        """
        self._release_passed(sequence)
        if not sequence.block_ids:
            sequence.block_ids = [[] for _ in self.groups]
            sequence.num_released = [0] * len(self.groups)
        counts = [table.num_missing(sequence, end) for table in self.groups]
        num_missing = sum(counts)
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
        """Give all blocks of a sequence back, its tail first."""
        if sequence.block_ids:
            self.pool.free(self._tail_first(sequence))
        sequence.block_ids = []
        sequence.num_released = []
        sequence.num_slots = 0

    def num_slots(self, sequence: KVSequence) -> int:
        """Positions that all tables of a sequence have room for; with states alone `ANY_NUMBER`."""
        lengths: list[int] = []
        for table in self.groups:
            if table.growth.holds_slots:
                ids = sequence.block_ids[table.group]
                lengths.append(len(ids))
        if not lengths:
            return ANY_NUMBER
        return min(lengths) * self.block_size

    def _release_passed(self, sequence: KVSequence) -> None:
        """Give back blocks that lie behind every later query's window; full ones stay cached."""
        for group in range(len(sequence.block_ids)):
            table = self.groups[group]
            first = table.first_needed(sequence)
            if first > sequence.num_released[group]:
                self._registry.offer(sequence, first)
                released = table.release(sequence, first)
                self.pool.free(released)

    def _tail_first(self, sequence: KVSequence) -> Iterator[int]:
        """The blocks of all tables, last ones first, so that a prefix loses its end first."""
        tables = sequence.block_ids
        longest = max(len(ids) for ids in tables)
        for index in reversed(range(longest)):
            for ids in tables:
                if index < len(ids) and ids[index] != NULL_BLOCK:
                    yield ids[index]


class PlainTables(BlockTables):
    """The tables of one group that keeps every token: nothing is ever released before the end."""

    def extend(self, sequence: KVSequence, end: int) -> NewBlocks | None:
        """Append what is missing."""
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
        """One block each: all their blocks are full, and one token more is to have room."""
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
    """The tables of groups that grow like `growth`."""
    is_plain = len(growth) == 1 and isinstance(growth[0], FullGrowth)
    kind = PlainTables if is_plain else BlockTables
    return kind(pool, growth, block_size, registry)
