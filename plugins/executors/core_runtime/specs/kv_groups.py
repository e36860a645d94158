"""Division of a model's layers into KV groups, so that one pool of equal blocks serves all kinds of layers.

Owns: the division, and the bytes of blocks. Never does: hold blocks, or count them (`core.kv.groups` does).
Called by: the configuration (memory plan), the worker (which buffer a layer lies in).

A block of a group holds `block_size` tokens for all layers of that group. Groups have equally many layers, so blocks are
equal in bytes and any group may use any of them. Layers that see a window then need blocks for the window only. Layers with
a state are in groups of their own: a state takes as many whole blocks as hold its bytes, whatever the sequence's length,
and as many again where drafts are verified.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from core.api.specs import KVGroup

MAX_GROUPS = 16
"""Block tables are built for each group in every step, so there should be few."""


def group_layers(
    windows: Sequence[int | None],
    layer_bytes: Sequence[int],
    *,
    hybrid: bool = True,
    states: Collection[int] = frozenset(),
    drafts: bool = False,
) -> tuple[KVGroup, ...]:
    """Divide layers into groups: first the groups that keep every token, last the groups with a state.

    windows: of each layer; None for one that sees all keys.
    layer_bytes: of a block of each layer, or of a sequence's state for a layer in `states`.
    hybrid: False puts all layers with keys into one group.
    drafts: whether drafts are verified, so that a state needs blocks for a copy of it.

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
    """The layers with keys and values."""
    by_window: dict[int | None, list[int]] = {}
    for layer in layers:
        alike = by_window.setdefault(windows[layer], [])
        alike.append(layer)
    block_sizes = {layer_bytes[layer] for layer in layers}
    has_windows = any(window is not None for window in by_window)
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
    """Consecutive parts of `size` layers; the last one may be shorter."""
    parts: list[tuple[int, ...]] = []
    for start in range(0, len(layers), size):
        end = start + size
        parts.append(tuple(layers[start:end]))
    return parts


def _full_first(window: int | None) -> tuple[bool, int]:
    return window is not None, window or 0


def _state_groups(keyed: Sequence[KVGroup], states: Collection[int], layer_bytes: Sequence[int]) -> tuple[KVGroup, ...]:
    """Groups of as many layers as the others have (more where there would be too many), equal states together."""
    size = len(states)
    if keyed:
        most_groups = max(MAX_GROUPS - len(keyed), 1)
        fewest = -(-len(states) // most_groups)
        largest = max(len(group.layers) for group in keyed)
        size = max(largest, fewest)
    by_number = sorted(states)
    by_size = sorted(by_number, key=lambda layer: layer_bytes[layer])
    groups = [KVGroup("state", members) for members in _parts(by_size, size)]
    # only now it is known how large a block is in each buffer, and so how many of them a state takes
    places = place_bytes([*keyed, *groups], layer_bytes)
    counted: list[KVGroup] = []
    for group in groups:
        num_blocks = state_blocks(group, places, layer_bytes)
        counted.append(msgspec.structs.replace(group, num_state_blocks=num_blocks))
    return tuple(counted)


def state_blocks(group: KVGroup, places: Sequence[int], layer_bytes: Sequence[int]) -> int:
    """Blocks that hold a sequence's state in each layer. places: bytes of one block in each buffer."""
    most = 0
    for layer, place in zip(group.layers, places, strict=False):
        num_blocks = -(-layer_bytes[layer] // place)
        most = max(most, num_blocks)
    return most


def _group_size(counts: Sequence[int]) -> int:
    """Layers of a group: the fewest places left empty, then the largest groups, with at most `MAX_GROUPS` of them."""

    num_layers = sum(counts)

    def num_groups(size: int) -> int:
        return sum(-(-count // size) for count in counts)

    def waste(size: int) -> tuple[int, int]:
        num_places = num_groups(size) * size
        num_empty = num_places - num_layers
        return num_empty, -size

    most_groups = max(MAX_GROUPS, len(counts))
    sizes = range(1, max(counts) + 1)
    possible = [size for size in sizes if num_groups(size) <= most_groups]
    return min(possible, key=waste)


def place_bytes(groups: Sequence[KVGroup], layer_bytes: Sequence[int]) -> list[int]:
    """Bytes of one block in each buffer: of the layers with keys that lie there, else of the largest state."""
    keyed = [group for group in groups if group.kind != "state"]
    states = [group for group in groups if group.kind == "state"]
    of_keys = _largest(keyed, layer_bytes)
    of_states = _largest(states, layer_bytes)
    beyond_keys = of_states[len(of_keys) :]
    return of_keys + beyond_keys


def _largest(groups: Sequence[KVGroup], layer_bytes: Sequence[int]) -> list[int]:
    """For each buffer the bytes of the largest layer in it: the nth layers of all groups share the nth buffer."""
    largest: list[int] = []
    for group in groups:
        missing = len(group.layers) - len(largest)
        largest += [0] * missing
        for place, layer in enumerate(group.layers):
            largest[place] = max(largest[place], layer_bytes[layer])
    return largest


def page_bytes(groups: Sequence[KVGroup], layer_bytes: Sequence[int]) -> int:
    """Bytes of one block of the pool, in all buffers."""
    return sum(place_bytes(groups, layer_bytes))
