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
    sizes = {layer_bytes[index] for index in layers}
    has_windows = any(window is not None for window in kinds)
    if not hybrid or not has_windows or len(sizes) > 1:
        return (KVGroup("full", tuple(layers)),)
    size = _group_size([len(members) for members in kinds.values()])
    groups: list[KVGroup] = []
    for window in sorted(kinds, key=_full_first):
        members = kinds[window]
        for start in range(0, len(members), size):
            layers = tuple(members[start : start + size])
            groups.append(KVGroup("full" if window is None else "sliding", layers, window))
    return tuple(groups)


def _full_first(window: int | None) -> tuple[bool, int]:
    return window is not None, window or 0


def _state_groups(keyed: Sequence[KVGroup], states: Sequence[int], layer_bytes: Sequence[int]) -> Iterator[KVGroup]:
    """Groups of as many layers as the others have (more where there would be too many), equal states together."""
    size = len(states)
    if keyed:
        most_groups = max(MAX_GROUPS - len(keyed), 1)
        fewest = -(-len(states) // most_groups)
        size = max(*(len(group.layers) for group in keyed), fewest)
    ordered = sorted(states, key=lambda layer: layer_bytes[layer])
    groups: list[KVGroup] = []
    for start in range(0, len(ordered), size):
        groups.append(KVGroup("state", tuple(ordered[start : start + size])))
    places = place_bytes([*keyed, *groups], layer_bytes)
    for group in groups:
        blocks = [-(-layer_bytes[layer] // place) for layer, place in zip(group.layers, places, strict=False)]
        yield msgspec.structs.replace(group, num_state_blocks=max(blocks))


def _group_size(counts: Sequence[int]) -> int:
    """Layers of a group: the fewest places left empty, then the largest groups, with at most `MAX_GROUPS` of them."""

    def num_groups(size: int) -> int:
        return sum(-(-count // size) for count in counts)

    def num_empty(size: int) -> int:
        return num_groups(size) * size - sum(counts)

    most_groups = max(MAX_GROUPS, len(counts))
    sizes = [size for size in range(1, max(counts) + 1) if num_groups(size) <= most_groups]
    return min(sizes, key=lambda size: (num_empty(size), -size))


def place_bytes(groups: Sequence[KVGroup], layer_bytes: Sequence[int]) -> list[int]:
    """Bytes of one block in each buffer: of the layers with keys that lie there, else of the largest state."""
    keyed = [group.layers for group in groups if group.kind != "state"]
    states = [group.layers for group in groups if group.kind == "state"]
    places: list[int] = []
    for layers in zip_longest(*keyed):
        places.append(_largest(layers, layer_bytes))
    for layers in list(zip_longest(*states))[len(places) :]:
        places.append(_largest(layers, layer_bytes))
    return places


def _largest(layers: Sequence[int | None], layer_bytes: Sequence[int]) -> int:
    """Bytes of the largest of the layers that share a buffer; a group that is shorter has None there."""
    return max((layer_bytes[layer] for layer in layers if layer is not None), default=0)


def page_bytes(groups: Sequence[KVGroup], layer_bytes: Sequence[int]) -> int:
    """Bytes of one block of the pool, in all buffers."""
    return sum(place_bytes(groups, layer_bytes))


def blocks_of_sequence(groups: Sequence[KVGroup], block_size: int, max_step_tokens: int, num_tokens: int) -> int:
    """Most blocks that a sequence of `num_tokens` tokens holds at any time."""
    rules = [growth_of(group, block_size, max_step_tokens) for group in groups]
    return sum(rule.most_blocks(num_tokens) for rule in rules)


def longest_sequence(groups: Sequence[KVGroup], block_size: int, max_step_tokens: int, capacity: int) -> int:
    """Tokens of the longest sequence that `capacity` blocks hold.

    max_step_tokens: most tokens of one sequence in a step; a window must stay until all of them are computed.
    """

    def needed(num_blocks: int) -> int:
        return blocks_of_sequence(groups, block_size, max_step_tokens, num_blocks * block_size)

    if needed(0) > capacity:
        return 0
    most = UNLIMITED // block_size
    num_blocks = bisect_right(range(most + 1), capacity, key=needed) - 1
    return num_blocks * block_size
