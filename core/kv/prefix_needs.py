"""Rules of which blocks of each group a prefix needs so that it can be served.

Owns: `PrefixNeeds`; pure arithmetic. Never does: know keys, blocks or pages. Called by: the prefix search, for what is in
memory, and loads (`KVLoad`), for what a connector has as well.

A prefix of n blocks can be served when every group has what the next query reads: groups that keep every token all n blocks,
sliding ones those of the last window, states the one after the last block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from core.api.kv_load import Has
from core.kv.growth import Growth


class PrefixNeeds:
    """The needs of groups that grow like `growth`, in blocks of `block_size` tokens.

    num_state_pages: pages of the state after a prefix. Each counts as one of the groups that follow those of `growth`.
    """

    def __init__(self, growth: Sequence[Growth], block_size: int, num_state_pages: int = 0) -> None:
        self._growth = growth
        self._block_size = block_size
        self._keyed = [group for group, rule in enumerate(growth) if rule.holds_slots]
        self._states = range(len(growth), len(growth) + num_state_pages)
        self._sliding = [group for group in self._keyed if not growth[group].needs_prefix]
        self._sliding += self._states

    def first(self, group: int, num_blocks: int) -> int:
        """Return the index of the first block of a group that a prefix of `num_blocks` blocks needs, and all after it."""
        if group in self._states:
            return max(num_blocks - 1, 0)
        return self._growth[group].first_needed(num_blocks * self._block_size)

    def entries(self, num_blocks: int) -> Iterator[tuple[int, int]]:
        """Yield (group, index) of everything that a prefix of `num_blocks` blocks needs."""
        for group in (*self._keyed, *self._states):
            for index in range(self.first(group, num_blocks), num_blocks):
                yield group, index

    def longest(self, most: int, has: Has) -> int:
        """Return the number of blocks of the longest prefix that can be served, at most `most`."""
        return self.served(self.known(most, has), has)

    def known(self, most: int, has: Has) -> int:
        """Return the number of leading blocks, at most `most`, that every group has which keeps every token."""
        num_blocks = most
        for group, rule in enumerate(self._growth):
            if rule.needs_prefix:
                num_blocks = _leading(group, num_blocks, has)
        return num_blocks

    def first_gap(self, most: int, has: Has) -> tuple[int, int] | None:
        """Return (group, index) of a block that every longer prefix needs; None when that depends on its length."""
        num_known = self.known(most, has)
        # Where the end of what is known lacks a window or a state, that alone may make the prefix longer.
        if num_known == most or self.served(num_known, has) < num_known:
            return None
        lacking = (group for group, rule in enumerate(self._growth) if rule.needs_prefix and not has(group, num_known))
        return next(lacking), num_known

    def served(self, most: int, has: Has) -> int:
        """Return the number of blocks, at most `most`, for which each sliding group has its last window, and the state exists.

        most: result of `known`.
        """
        num_blocks = most
        agreed = 0
        while num_blocks and agreed < len(self._sliding):
            for group in self._sliding:
                missing = self._last_missing(group, num_blocks, has)
                if missing is not None:
                    # A shorter prefix moves the windows of all groups, so that all of them are checked again.
                    num_blocks = missing
                    agreed = 0
                    break
                agreed += 1
        return num_blocks

    def _last_missing(self, group: int, num_blocks: int, has: Has) -> int | None:
        """Return the index of the last missing block in a group's window, None for none; a prefix has to end before it."""
        first = self.first(group, num_blocks)
        for index in range(num_blocks - 1, first - 1, -1):
            if not has(group, index):
                return index
        return None


def _leading(group: int, most: int, has: Has) -> int:
    """Return how many leading blocks a group has, up to `most`."""
    for index in range(most):
        if not has(group, index):
            return index
    return most
