"""KV groups: which layers share a block table, so that one pool of equal blocks serves all kinds of layers.

Owns: the division of a model's layers into groups, and how many tokens a pool then has room for. Never does: own blocks.
Called by: the configuration (memory plan), the worker (which buffer a layer uses), the manager.

A block of a group has room for `block_size` tokens in all layers of that group. Groups have equally many layers, so blocks are
equal in bytes and any group may use any of them. Layers with a sliding window then need blocks for the window only. Layers
with a state are in groups of their own: a state takes as many whole blocks as its bytes need, independent of the sequence's
length, and as many again where drafts are verified.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence

import msgspec

from core.api.specs import KVGroup
from core.kv.growth import growth_of

MAX_GROUPS = 16
"""Limit of the number of groups, because block tables are built for each group in every step."""

UNLIMITED = 1 << 40
"""Limit of the length in tokens when no layer needs more than a window and the pool has room for that."""


def single_group(num_layers: int) -> tuple[KVGroup, ...]:
    """Return a single group of all layers, which keeps every token."""
    return (KVGroup("full", tuple(range(num_layers))),)


def group_layers(
    windows: Sequence[int | None],
    layer_bytes: Sequence[int],
    *,
    hybrid: bool = True,
    states: Collection[int] = frozenset(),
    drafts: bool = False,
) -> tuple[KVGroup, ...]:
    """Divide layers into groups: first the groups that keep every token, last the groups with states.

    windows: sliding window of each layer in tokens; None for a layer that attends to all keys.
    layer_bytes: bytes of a block of each layer, or of a sequence's state for a layer in `states`.
    hybrid: False puts all layers with keys into one group.
    states: layers with a state.
    drafts: whether drafts are verified, so that a state needs blocks for a copy.

    Layers whose blocks differ in bytes cannot share a pool, so layers with such keys form one group as well.
    """
    keyed = [layer for layer in range(len(windows)) if layer not in states]
    groups: tuple[KVGroup, ...] = ()
    if keyed:
        groups = _keyed_groups(keyed, windows, layer_bytes, hybrid)
    if states:
        for group in _state_groups(groups, states, layer_bytes):
            num_spare = group.num_state_blocks if drafts else 0
            groups += (msgspec.structs.replace(group, num_spare_blocks=num_spare),)
    return groups


def _keyed_groups(
    layers: Sequence[int], windows: Sequence[int | None], layer_bytes: Sequence[int], hybrid: bool
) -> tuple[KVGroup, ...]:
    """Divide the layers with keys and values into groups."""
    by_window: dict[int | None, list[int]] = {}
    for layer in layers:
        alike = by_window.setdefault(windows[layer], [])
        alike.append(layer)
    block_sizes = {layer_bytes[layer] for layer in layers}
    has_windows = any(window is not None for window in by_window)
    # A single group keeps every token, which is always right; windows then save no memory.
    if not hybrid or not has_windows or len(block_sizes) > 1:
        return (KVGroup("full", tuple(layers)),)
    counts = [len(alike) for alike in by_window.values()]
    size = _group_size(counts)
    groups: list[KVGroup] = []
    for window in sorted(by_window, key=_full_first):
        for members in _parts(by_window[window], size):
            if window is None:
                groups.append(KVGroup("full", members))
            else:
                groups.append(KVGroup("sliding", members, window))
    return tuple(groups)


def _parts(layers: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Cut layers into consecutive parts of `size`; the last one may be shorter."""
    parts: list[tuple[int, ...]] = []
    for start in range(0, len(layers), size):
        end = start + size
        parts.append(tuple(layers[start:end]))
    return parts


def _full_first(window: int | None) -> tuple[bool, int]:
    return window is not None, window or 0


def _state_groups(keyed: Sequence[KVGroup], states: Collection[int], layer_bytes: Sequence[int]) -> tuple[KVGroup, ...]:
    """Divide the layers with states into groups as large as the others, or larger to respect `MAX_GROUPS`."""
    size = len(states)
    if keyed:
        most_groups = max(MAX_GROUPS - len(keyed), 1)
        fewest = -(-len(states) // most_groups)
        largest = max(len(group.layers) for group in keyed)
        size = max(largest, fewest)
    by_number = sorted(states)
    # Layers with states of equal size together, because a group takes the blocks that its largest state needs.
    by_size = sorted(by_number, key=lambda layer: layer_bytes[layer])
    groups = [KVGroup("state", members) for members in _parts(by_size, size)]
    # The size of a block in each buffer is known only now, and with it the number of blocks that a state takes.
    places = place_bytes([*keyed, *groups], layer_bytes)
    counted: list[KVGroup] = []
    for group in groups:
        num_blocks = _num_state_blocks(group, places, layer_bytes)
        counted.append(msgspec.structs.replace(group, num_state_blocks=num_blocks))
    return tuple(counted)


def _num_state_blocks(group: KVGroup, places: Sequence[int], layer_bytes: Sequence[int]) -> int:
    """Return the blocks that a sequence's state takes in each layer. places: bytes of one block in each buffer."""
    most = 0
    for layer, place in zip(group.layers, places, strict=False):
        num_blocks = -(-layer_bytes[layer] // place)
        most = max(most, num_blocks)
    return most


def _group_size(counts: Sequence[int]) -> int:
    """Return the layers of a group: fewest empty places, then largest groups, with at most `MAX_GROUPS` of them."""

    num_layers = sum(counts)

    def num_groups(size: int) -> int:
        return sum(-(-count // size) for count in counts)

    def waste(size: int) -> tuple[int, int]:
        num_places = num_groups(size) * size
        num_empty = num_places - num_layers
        return num_empty, -size

    # Layers with different windows cannot share a group, so there may have to be more.
    most_groups = max(MAX_GROUPS, len(counts))
    sizes = range(1, max(counts) + 1)
    possible = [size for size in sizes if num_groups(size) <= most_groups]
    return min(possible, key=waste)


def place_bytes(groups: Sequence[KVGroup], layer_bytes: Sequence[int]) -> list[int]:
    """Return the bytes of one block in each buffer: of its layers with keys, otherwise of its largest state."""
    keyed = [group for group in groups if group.kind != "state"]
    states = [group for group in groups if group.kind == "state"]
    of_keys = _largest(keyed, layer_bytes)
    of_states = _largest(states, layer_bytes)
    # Keys decide the size where there are any: a larger state takes several blocks, a larger block would waste memory.
    beyond_keys = of_states[len(of_keys) :]
    return of_keys + beyond_keys


def _largest(groups: Sequence[KVGroup], layer_bytes: Sequence[int]) -> list[int]:
    """Return the bytes of the largest layer in each buffer. The nth layers of all groups share the nth buffer."""
    largest: list[int] = []
    for group in groups:
        missing = len(group.layers) - len(largest)
        largest += [0] * missing
        for place, layer in enumerate(group.layers):
            largest[place] = max(largest[place], layer_bytes[layer])
    return largest


def page_bytes(groups: Sequence[KVGroup], layer_bytes: Sequence[int]) -> int:
    """Return the bytes of one block of the pool, summed over all buffers."""
    return sum(place_bytes(groups, layer_bytes))


def blocks_of_sequence(groups: Sequence[KVGroup], block_size: int, max_step_tokens: int, num_tokens: int) -> int:
    """Return the maximum number of blocks that a sequence of `num_tokens` tokens has at any time."""
    count = 0
    for group in groups:
        rule = growth_of(group, block_size, max_step_tokens)
        count += rule.most_blocks(num_tokens)
    return count


def longest_sequence(groups: Sequence[KVGroup], block_size: int, max_step_tokens: int, capacity: int) -> int:
    """Return the tokens of the longest sequence for which `capacity` blocks suffice; 0 when none fits.

    max_step_tokens: maximum tokens of one sequence in a step; a window must stay until all of them are computed.
    capacity: usable blocks of the pool.
    """

    def needed(num_blocks: int) -> int:
        return blocks_of_sequence(groups, block_size, max_step_tokens, num_blocks * block_size)

    if needed(0) > capacity:
        return 0
    most = UNLIMITED // block_size
    lengths = range(most + 1)
    # The need grows with the length, so a binary search takes 40 evaluations at most.
    num_blocks = bisect_right(lengths, capacity, key=needed) - 1
    return num_blocks * block_size
