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
"""Limit of the length in tokens when no layer needs more than a window and the pool has room for that."""


def blocks_of_sequence(groups: Sequence[KVGroup], block_size: int, max_step_tokens: int, num_tokens: int) -> int:
    """Return the maximum number of blocks that a sequence of `num_tokens` tokens has at any time."""
    return sum(growth_of(group, block_size, max_step_tokens).max_blocks(num_tokens) for group in groups)


def longest_sequence(groups: Sequence[KVGroup], block_size: int, max_step_tokens: int, capacity: int) -> int:
    """Return the tokens of the longest sequence for which `capacity` blocks suffice; 0 when none fits.

    max_step_tokens: maximum tokens of one sequence in a step; a window must stay until all of them are computed.
    capacity: usable blocks of the pool.
    """

    rules = [growth_of(group, block_size, max_step_tokens) for group in groups]

    def needed(num_blocks: int) -> int:
        return sum(rule.max_blocks(num_blocks * block_size) for rule in rules)

    if needed(0) > capacity:
        return 0
    most = UNLIMITED // block_size
    # The need grows with the length, so a binary search takes 40 evaluations at most.
    num_blocks = bisect_right(range(most + 1), capacity, key=needed) - 1
    return num_blocks * block_size
