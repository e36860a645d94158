"""How the block table of one group grows with a sequence, and what falls off its front.

Owns: one class for each kind of group; pure arithmetic. Never does: hold blocks. Called by: the manager, the groups.

A table has one entry for every `block_size` tokens from the first token on; entries that are not needed any more are the
null block. Positions and counts are in tokens, indices in blocks.
"""

from __future__ import annotations

from typing import Protocol

from core.api.specs import KVGroup


class Growth(Protocol):
    """The rule of one kind of group.

    needs_prefix: whether a prefix hit needs every block from the first on.
    holds_slots: whether entries are tokens.
    """

    needs_prefix: bool
    holds_slots: bool

    def first_needed(self, num_computed: int) -> int:
        """Index of the first block that a query at position `num_computed` or later reads."""
        ...

    def table_length(self, num_computed: int, num_tokens: int) -> int:
        """Entries of a table that holds `num_tokens` tokens, of which `num_computed` are computed."""
        ...

    def most_blocks(self, num_tokens: int) -> int:
        """Most blocks that a sequence of `num_tokens` tokens holds at any time."""
        ...


class FullGrowth:
    """Every token stays."""

    needs_prefix = True
    holds_slots = True

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def first_needed(self, num_computed: int) -> int:
        """The first of all."""
        return 0

    def table_length(self, num_computed: int, num_tokens: int) -> int:
        """Room for all tokens."""
        return -(-num_tokens // self.block_size)

    def most_blocks(self, num_tokens: int) -> int:
        """Room for all tokens."""
        return -(-num_tokens // self.block_size)


class SlidingGrowth:
    """Only the last `window` tokens stay, and those of the running step.

    most: blocks that hold a window less one token and a step, wherever they begin in a block. A sequence takes so many
    at once and later only exchanges them, so that it never waits for a block in the middle of its prompt.
    """

    needs_prefix = False
    holds_slots = True

    def __init__(self, block_size: int, window: int, max_step_tokens: int) -> None:
        self.block_size = block_size
        self.window = window
        most_tokens = window - 1 + max_step_tokens
        # such a run of tokens may begin with the last one of a block: that block, and enough for all the others
        self.most = -(-(most_tokens - 1) // block_size) + 1

    def first_needed(self, num_computed: int) -> int:
        """The block of the oldest key that the next query sees."""
        oldest_key = max(0, num_computed - self.window + 1)
        return oldest_key // self.block_size

    def table_length(self, num_computed: int, num_tokens: int) -> int:
        """Room for all tokens, but no more than a window and a step ahead."""
        num_blocks = -(-num_tokens // self.block_size)
        most = self.first_needed(num_computed) + self.most
        return min(num_blocks, most)

    def most_blocks(self, num_tokens: int) -> int:
        """Of a short sequence all, else a window and a step."""
        num_blocks = -(-num_tokens // self.block_size)
        return min(num_blocks, self.most)


class StateGrowth:
    """A state of fixed size that every step overwrites, so that a sequence has one of its own.

    num_blocks: of the state, and of a copy of it where drafts are verified.
    """

    needs_prefix = False
    holds_slots = False

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def first_needed(self, num_computed: int) -> int:
        """All of it."""
        return 0

    def table_length(self, num_computed: int, num_tokens: int) -> int:
        """The state."""
        return self.num_blocks

    def most_blocks(self, num_tokens: int) -> int:
        """The state."""
        return self.num_blocks


def growth_of(group: KVGroup, block_size: int, max_step_tokens: int) -> Growth:
    """The growth of a group. max_step_tokens: most tokens of one sequence in a step, drafts included."""
    if group.kind == "state":
        return StateGrowth(group.num_state_blocks + group.num_spare_blocks)
    if group.kind == "sliding" and group.window is not None:
        return SlidingGrowth(block_size, group.window, max_step_tokens)
    return FullGrowth(block_size)
