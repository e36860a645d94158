"""KV groups: which layers share a block table, so that one pool of equal blocks serves all kinds of layers.

Owns: the division of a model's layers into groups, and how many tokens a pool then holds. Never does: hold blocks.
Called by: the configuration (memory plan), the worker (which buffer a layer lies in), the manager.

A block of a group holds `block_size` tokens for all layers of that group. Groups have equally many layers, so blocks are
equal in bytes and any group may use any of them. Layers that see a window then need blocks for the window only. Layers with
a state are in groups of their own: a state takes as many whole blocks as hold its bytes, whatever the sequence's length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest

import msgspec

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
    windows: Sequence[int | None],
    layer_bytes: Sequence[int],
    *,
    hybrid: bool = True,
    states: Collection[int] = frozenset(),
) -> tuple[KVGroup, ...]:
    """Divide layers into groups; those that keep every token come first, those with a state last.

    windows: of each layer, None for one that sees all keys. layer_bytes: a block of each layer, of those in `states` a
    sequence's state. Layers with keys whose blocks differ in bytes cannot share a pool, so they then form one group.
    hybrid: False for one group of them in any case.
    """
    keyed = [index for index in range(len(windows)) if index not in states]
    groups = _keyed_groups(keyed, windows, layer_bytes, hybrid) if keyed else ()
    return (*groups, *_state_groups(groups, sorted(states), layer_bytes)) if states else groups


def _keyed_groups(
    layers: Sequence[int], windows: Sequence[int | None], layer_bytes: Sequence[int], hybrid: bool
) -> tuple[KVGroup, ...]:
    """The layers with keys and values."""
    kinds: dict[int | None, list[int]] = {}
    for index in layers:
        kinds.setdefault(windows[index], []).append(index)
    unequal = len({layer_bytes[index] for index in layers}) > 1
    if not hybrid or unequal or not any(window is not None for window in kinds):
        return (KVGroup("full", tuple(layers)),)
    size = _group_size([len(layers) for layers in kinds.values()])
    return tuple(
        KVGroup("full" if window is None else "sliding", tuple(mine[start : start + size]), window)
        for window, mine in sorted(kinds.items(), key=lambda item: (item[0] is not None, item[0] or 0))
        for start in range(0, len(mine), size)
    )


def _state_groups(keyed: Sequence[KVGroup], states: Sequence[int], layer_bytes: Sequence[int]) -> Iterator[KVGroup]:
    """Groups of as many layers as the others have (more where there would be too many), equal states together."""
    fewest = -(-len(states) // max(MAX_GROUPS - len(keyed), 1))
    size = max(*(len(group.layers) for group in keyed), fewest) if keyed else len(states)
    ordered = sorted(states, key=lambda layer: layer_bytes[layer])
    groups = [KVGroup("state", tuple(ordered[start : start + size])) for start in range(0, len(ordered), size)]
    places = place_bytes([*keyed, *groups], layer_bytes)
    for group in groups:
        blocks = [-(-layer_bytes[layer] // place) for layer, place in zip(group.layers, places, strict=False)]
        yield msgspec.structs.replace(group, num_state_blocks=max(blocks))


def _group_size(counts: Sequence[int]) -> int:
    """Layers of a group: the fewest places left empty, then the largest groups, with at most `MAX_GROUPS` of them."""

    def num_groups(size: int) -> int:
        return sum(-(-count // size) for count in counts)

    sizes = [size for size in range(1, max(counts) + 1) if num_groups(size) <= max(MAX_GROUPS, len(counts))]
    return min(sizes, key=lambda size: (num_groups(size) * size - sum(counts), -size))


def place_bytes(groups: Sequence[KVGroup], layer_bytes: Sequence[int]) -> list[int]:
    """Bytes of one block in each buffer: of the layers with keys that lie there, else of the largest state."""
    keyed = [group.layers for group in groups if group.kind != "state"]
    states = [group.layers for group in groups if group.kind == "state"]
    places = [
        max((layer_bytes[layer] for layer in layers if layer is not None), default=0) for layers in zip_longest(*keyed)
    ]
    for layers in list(zip_longest(*states))[len(places) :]:
        places.append(max(layer_bytes[layer] for layer in layers if layer is not None))
    return places


def page_bytes(groups: Sequence[KVGroup], layer_bytes: Sequence[int]) -> int:
    """Bytes of one block of the pool, in all buffers."""
    return sum(place_bytes(groups, layer_bytes))


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
