"""KV groups: which layers share a block table, so that one pool of equal blocks serves all kinds of layers.

Owns: the division of a model's layers into groups, and how many tokens a pool then holds. Never does: hold blocks.
Called by: the configuration (memory plan), the worker (which buffer a layer lies in), the manager.

A block of a group holds `block_size` tokens for all layers of that group. Groups have equally many layers, so blocks are
equal in bytes and any group may use any of them. Layers that see a window then need blocks for the window only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from core.api.specs import KVGroup
from core.kv.growth import growth_of

MAX_GROUPS = 16
"""Block tables are built for each group in every step, so there should be few."""

UNLIMITED = 1 << 40
"""Tokens of a sequence whose layers need no more than a window, when the pool holds that."""


def single_group(num_layers: int) -> tuple[KVGroup, ...]:
    """All layers share one table and keep every token."""
    return (KVGroup("full", tuple(range(num_layers))),)


def group_layers(
    windows: Sequence[int | None], layer_bytes: Sequence[int], *, hybrid: bool = True
) -> tuple[KVGroup, ...]:
    """Divide layers into groups; those that keep every token come first.

    windows: of each layer, None for one that sees all keys. layer_bytes: a block of each layer; unequal ones cannot share
    a pool, so all layers then form one group. hybrid: False for one group in any case.
    """
    kinds: dict[int | None, list[int]] = {}
    for index, window in enumerate(windows):
        kinds.setdefault(window, []).append(index)
    if not hybrid or len(set(layer_bytes)) > 1 or not any(window is not None for window in kinds):
        return single_group(len(windows))
    size = _group_size([len(layers) for layers in kinds.values()])
    return tuple(
        KVGroup("full" if window is None else "sliding", tuple(layers[start : start + size]), window)
        for window, layers in sorted(kinds.items(), key=lambda item: (item[0] is not None, item[0] or 0))
        for start in range(0, len(layers), size)
    )


def _group_size(counts: Sequence[int]) -> int:
    """Layers of a group: the fewest places left empty, then the largest groups, with at most `MAX_GROUPS` of them."""

    def num_groups(size: int) -> int:
        return sum(-(-count // size) for count in counts)

    sizes = [size for size in range(1, max(counts) + 1) if num_groups(size) <= max(MAX_GROUPS, len(counts))]
    return min(sizes, key=lambda size: (num_groups(size) * size - sum(counts), -size))


def page_bytes(groups: Iterable[KVGroup], layer_bytes: Sequence[int]) -> int:
    """Bytes of one block of the pool: of the group with most of them."""
    return max(sum(layer_bytes[layer] for layer in group.layers) for group in groups)


def blocks_of_sequence(groups: Sequence[KVGroup], block_size: int, max_step_tokens: int, num_tokens: int) -> int:
    """Most blocks that a sequence of `num_tokens` tokens holds at any time."""
    return sum(growth_of(group, block_size, max_step_tokens).most_blocks(num_tokens) for group in groups)


def longest_sequence(groups: Sequence[KVGroup], block_size: int, max_step_tokens: int, capacity: int) -> int:
    """Tokens of the longest sequence that `capacity` blocks hold.

    max_step_tokens: most tokens of one sequence in a step; a window must stay until all of them are computed.
    """

    def needed(num_blocks: int) -> int:
        return blocks_of_sequence(groups, block_size, max_step_tokens, num_blocks * block_size)

    most = UNLIMITED // block_size
    return (bisect_right(range(most + 1), capacity, key=needed) - 1) * block_size if needed(0) <= capacity else 0
