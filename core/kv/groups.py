"""Blocks that sequences need in each KV group.

Owns: that count, and the longest sequence that a pool holds. Never does: hold blocks, or divide layers into groups
(`core_runtime.specs.kv_groups` does). Called by: the configuration (memory plan), the manager.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from core.api.specs import KVGroup
from core.kv.growth import growth_of

UNLIMITED = 1 << 40
"""Tokens of a sequence whose layers need no more than a window, when the pool holds that."""


def single_group(num_layers: int) -> tuple[KVGroup, ...]:
    """All layers share one table and keep every token."""
    return (KVGroup("full", tuple(range(num_layers))),)


def blocks_of_sequence(groups: Sequence[KVGroup], block_size: int, max_step_tokens: int, num_tokens: int) -> int:
    """Most blocks that a sequence of `num_tokens` tokens holds at any time."""
    count = 0
    for group in groups:
        rule = growth_of(group, block_size, max_step_tokens)
        count += rule.most_blocks(num_tokens)
    return count


def longest_sequence(groups: Sequence[KVGroup], block_size: int, max_step_tokens: int, capacity: int) -> int:
    """Tokens of the longest sequence that `capacity` blocks hold.

    max_step_tokens: most tokens of one sequence in a step; a window must stay until all of them are computed.
    capacity: blocks of the pool.
    """

    def needed(num_blocks: int) -> int:
        return blocks_of_sequence(groups, block_size, max_step_tokens, num_blocks * block_size)

    if needed(0) > capacity:
        return 0
    most = UNLIMITED // block_size
    lengths = range(most + 1)
    num_blocks = bisect_right(lengths, capacity, key=needed) - 1
    return num_blocks * block_size
