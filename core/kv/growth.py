"""Rules of how the block table of one group grows with a sequence, and which leading blocks it no longer needs.

Owns: one class for each kind of group; pure arithmetic. Never does: own blocks. Called by: the manager, the groups.

A table has one entry for every `block_size` tokens from the first token on; entries that are no longer needed are the null
block. Positions and counts are in tokens, indices in blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from core.api.specs import KVGroup


class Growth(ABC):
    """The growth rule of one kind of group. By default nothing is given back before the end.

    needs_prefix: whether a prefix hit needs every block from the first on.
    holds_slots: whether entries correspond to tokens; False for states.
    """

    needs_prefix = False
    holds_slots = True

    def first_needed(self, num_computed: int) -> int:
        """Return the index of the first block that a query at position `num_computed` or later reads."""
        return 0

    @abstractmethod
    def table_length(self, num_computed: int, num_tokens: int) -> int:
        """Return the entries of a table for `num_tokens` tokens, of which `num_computed` are computed."""

    def max_blocks(self, num_tokens: int) -> int:
        """Return the maximum number of blocks that a sequence of `num_tokens` tokens has at any time."""
        return self.table_length(0, num_tokens)


class FullGrowth(Growth):
    """The rule of a group that keeps every token."""

    needs_prefix = True

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def table_length(self, num_computed: int, num_tokens: int) -> int:
        """Return the number of blocks for all tokens."""
        return -(-num_tokens // self.block_size)


class SlidingGrowth(Growth):
    """The rule of a group with a sliding window: the last `window` tokens are kept, and those of the running step.

    most: blocks for a window less one token plus a step, wherever these begin in a block. A sequence takes this number
    at once and later only exchanges blocks, so that it never waits for one in the middle of its prompt.
    """

    def __init__(self, block_size: int, window: int, max_step_tokens: int) -> None:
        self.block_size = block_size
        self.window = window
        most_tokens = window - 1 + max_step_tokens
        # Such a run of tokens may begin at the last position of a block: that block, and enough for all other tokens.
        self.most = -(-(most_tokens - 1) // block_size) + 1

    def first_needed(self, num_computed: int) -> int:
        """Return the index of the block with the oldest key that the next query attends to."""
        oldest_key = max(0, num_computed - self.window + 1)
        return oldest_key // self.block_size

    def table_length(self, num_computed: int, num_tokens: int) -> int:
        """Return the number of blocks for all tokens, limited to a window and a step ahead."""
        num_blocks = -(-num_tokens // self.block_size)
        most = self.first_needed(num_computed) + self.most
        return min(num_blocks, most)


class StateGrowth(Growth):
    """The rule of a group with a state of fixed size, which every step overwrites and no sequences share.

    num_blocks: blocks of the state, and of a copy of it where drafts are verified.
    """

    holds_slots = False

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def table_length(self, num_computed: int, num_tokens: int) -> int:
        """Return the blocks of the state, independent of the number of tokens."""
        return self.num_blocks


def growth_of(group: KVGroup, block_size: int, max_step_tokens: int) -> Growth:
    """Return the growth rule of a group. max_step_tokens: maximum tokens of one sequence in a step, drafts included."""
    if group.kind == "state":
        return StateGrowth(group.num_state_blocks + group.num_spare_blocks)
    if group.kind == "sliding" and group.window is not None:
        return SlidingGrowth(block_size, group.window, max_step_tokens)
    return FullGrowth(block_size)
