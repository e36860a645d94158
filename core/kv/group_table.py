"""The block tables of one KV group, one for each sequence.

Owns: `GroupTable`: which entries a table lacks, has and no longer needs. Never does: allocate or free blocks. Called by: the
block tables, which do that for all groups at once, and the checks.
"""

from __future__ import annotations

from core.kv.block_pool import NULL_BLOCK
from core.kv.growth import Growth
from core.kv.integrity import require
from core.kv.sequence import KVSequence


class GroupTable:
    """Rules of the tables of group `group`, which grow by `growth`. The table of a sequence is its `block_ids[group]`."""

    __slots__ = ("group", "growth")

    def __init__(self, group: int, growth: Growth) -> None:
        self.group = group
        self.growth = growth

    def num_missing(self, sequence: KVSequence, end: int) -> int:
        """Return how many entries to append so that the table has room up to position `end`.

        A table with a window gets all the blocks that it will ever have.
        """
        if not self.growth.needs_prefix:
            # All at once, so that a sequence never waits for a block in the middle of its prompt (see `SlidingGrowth`).
            end = max(end, len(sequence.token_ids))
        wanted = self.growth.table_length(sequence.num_computed_tokens, end)
        return max(wanted - len(sequence.block_ids[self.group]), 0)

    def num_missing_after(self, num_shared: int, num_computed: int, num_tokens: int) -> int:
        """Return how many entries a sequence with `num_shared` ones appends for `num_tokens` tokens."""
        return max(self.growth.table_length(num_computed, num_tokens) - num_shared, 0)

    def release(self, sequence: KVSequence, first: int) -> list[int]:
        """Replace the blocks before index `first` by the null block; returns them, last one first."""
        ids = sequence.block_ids[self.group]
        start = sequence.num_released[self.group]
        passed = ids[start:first]
        ids[start:first] = [NULL_BLOCK] * (first - start)
        sequence.num_released[self.group] = first
        # The pool evicts in the order of freeing, and a prefix should lose its end first.
        passed.reverse()
        return passed

    def check(self, sequence: KVSequence) -> None:
        """Raise `IntegrityError` unless a table has zeros before its window, then blocks, each once."""
        ids = sequence.block_ids[self.group]
        released = sequence.num_released[self.group]
        held = ids[released:]
        require(not any(ids[:released]), "windows", f"a block behind the window is still in the table {ids}")
        require(NULL_BLOCK not in held, "windows", f"the null block is in the live part of the table {ids}")
        require(
            released <= self.growth.first_needed(sequence.num_computed_tokens),
            "windows",
            f"{released} blocks are released, a query at {sequence.num_computed_tokens} needs one of them",
        )
        require(len(set(held)) == len(held), "block_table", f"a block appears twice in {ids}")
