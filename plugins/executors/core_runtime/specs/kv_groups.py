"""Division of a model's layers into KV groups, so that one pool of equal blocks serves all kinds of layers.

Owns: the division, and the bytes of blocks. Never does: hold blocks, or count them (`core.kv.groups` does).
Called by: the configuration (memory plan), the worker (which buffer a layer lies in).

A block of a group holds `block_size` tokens for all layers of that group. Groups have equally many layers, so blocks are
equal in bytes and any group may use any of them. Layers that see a window then need blocks for the window only. Where layers
differ in bytes, groups have about equally many bytes, and the layers of a group lie one after the other in a block. Layers with
a state are in groups of their own: a state takes as many whole blocks as hold its bytes, whatever the sequence's length,
and as many again where drafts are verified. A layer of zero bytes reads the blocks of another one, and is in no group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, zip_longest

import msgspec

from core.api.specs import KVGroup

LAYER_ALIGNMENT = 64
"""Bytes to whose multiples layers begin that share a buffer: lines of a processor's cache."""

MAX_GROUPS = 16
"""Block tables are built for each group in every step, so there should be few."""


def group_layers(
    windows: Sequence[int | None],
    layer_bytes: Sequence[int],
    *,
    hybrid: bool = True,
    strided: bool = False,
    states: Collection[int] = frozenset(),
    drafts: bool = False,
) -> tuple[KVGroup, ...]:
    """Divide layers into groups: first the groups that keep every token, last the groups with a state.

    windows: of each layer; None for one that sees all keys.
    layer_bytes: of a block of each layer, or of a sequence's state for a layer in `states`; 0: the layer stores nothing.
    hybrid: False puts all layers with keys into one group.
    strided: whether the layers of a group may lie next to each other in a buffer.
    drafts: whether drafts are verified, so that a state needs blocks for a copy of it.

    Layers with keys whose blocks differ in bytes form one group as well, unless they may be `strided`, and none has a state.
    """
    keyed = keyed_layers(layer_bytes, states)
    groups: tuple[KVGroup, ...] = ()
    if keyed:
        widths = {layer_bytes[layer] for layer in keyed}
        fits = len(widths) == 1 or (strided and not states)
        groups = _keyed_groups(keyed, windows, layer_bytes, hybrid and fits)
    if states:
        for group in _state_groups(groups, states, layer_bytes):
            num_spare = group.num_state_blocks if drafts else 0
            groups += (msgspec.structs.replace(group, num_spare_blocks=num_spare),)
    return groups


def keyed_layers(layer_bytes: Sequence[int], states: Collection[int]) -> list[int]:
    """Return the layers that store keys and values."""
    return [layer for layer, size in enumerate(layer_bytes) if size and layer not in states]


def stored_bytes(sizes: Sequence[int], lenders: Mapping[int, int]) -> list[int]:
    """Return the bytes of each layer without those of layers that read the blocks of another one, see
    `DecoderShape.lenders`.
    """
    return [0 if layer in lenders else size for layer, size in enumerate(sizes)]


def _keyed_groups(
    layers: Sequence[int], windows: Sequence[int | None], layer_bytes: Sequence[int], hybrid: bool
) -> tuple[KVGroup, ...]:
    """The layers with keys and values."""
    by_window: dict[int | None, list[int]] = {}
    for layer in layers:
        alike = by_window.setdefault(windows[layer], [])
        alike.append(layer)
    has_windows = any(window is not None for window in by_window)
    if not hybrid or not has_windows:
        return (KVGroup("full", tuple(layers)),)
    size = _group_bytes(list(by_window.values()), layer_bytes)
    groups: list[KVGroup] = []
    for window in sorted(by_window, key=_full_first):
        for members in _within(by_window[window], layer_bytes, size):
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


def _within(layers: Sequence[int], layer_bytes: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Consecutive parts of at most `size` bytes."""
    parts: list[list[int]] = []
    room = 0
    for layer in layers:
        if layer_bytes[layer] > room:
            parts.append([])
            room = size
        parts[-1].append(layer)
        room -= layer_bytes[layer]
    return [tuple(part) for part in parts]


def _group_bytes(kinds: Sequence[Sequence[int]], layer_bytes: Sequence[int]) -> int:
    """Bytes of a group: the fewest bytes left empty, then the largest groups, with at most `MAX_GROUPS` of them.

    kinds: layers of each kind, which share no group with other kinds.
    """
    total = sum(layer_bytes[layer] for alike in kinds for layer in alike)
    widest = max(layer_bytes[layer] for alike in kinds for layer in alike)

    def num_groups(size: int) -> int:
        return sum(len(_within(alike, layer_bytes, size)) for alike in kinds)

    def waste(size: int) -> tuple[int, int]:
        return num_groups(size) * size - total, -size

    sizes: set[int] = set()
    for alike in kinds:
        for count in range(1, len(alike) + 1):
            sizes.add(max(sum(layer_bytes[layer] for layer in part) for part in _parts(alike, count)))
    most_groups = max(MAX_GROUPS, len(kinds))
    possible = [size for size in sizes if size >= widest and num_groups(size) <= most_groups]
    return min(possible, key=waste)


def place_bytes(groups: Sequence[KVGroup], layer_bytes: Sequence[int]) -> list[int]:
    """Bytes of one block in each buffer: of the layers with keys that lie there, else of the largest state."""
    keyed = [group for group in groups if group.kind != "state"]
    if not _is_level(keyed, layer_bytes):
        return [max(_ends(group, layer_bytes)[-1] for group in keyed)]
    states = [group for group in groups if group.kind == "state"]
    of_keys = _largest(keyed, layer_bytes)
    of_states = _largest(states, layer_bytes)
    beyond_keys = of_states[len(of_keys) :]
    return of_keys + beyond_keys


def layer_places(groups: Sequence[KVGroup], layer_bytes: Sequence[int]) -> dict[int, tuple[int, int, int]]:
    """(buffer, first byte, last byte + 1) in a block, of each layer."""
    sizes = place_bytes(groups, layer_bytes)
    places: dict[int, tuple[int, int, int]] = {}
    for group in groups:
        if _is_level(groups, layer_bytes):
            places |= {layer: (index, 0, sizes[index]) for index, layer in enumerate(group.layers)}
            continue
        start = 0
        for layer, end in zip(group.layers, _ends(group, layer_bytes), strict=True):
            places[layer] = (0, start, start + layer_bytes[layer])
            start = end
    return places


def _is_level(groups: Sequence[KVGroup], layer_bytes: Sequence[int]) -> bool:
    """Whether the nth layers of all groups with keys have equally many bytes, so that they share the nth buffer."""
    by_place = zip_longest(*(group.layers for group in groups if group.kind != "state"))
    return all(len({layer_bytes[layer] for layer in alike if layer is not None}) == 1 for alike in by_place)


def _ends(group: KVGroup, layer_bytes: Sequence[int]) -> list[int]:
    """Ends of layers that lie one after the other in a block."""
    rounded = (-(-layer_bytes[layer] // LAYER_ALIGNMENT) * LAYER_ALIGNMENT for layer in group.layers)
    return list(accumulate(rounded))


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
