"""Division of a model's layers into KV groups where several stages each hold some of the layers.

Owns: groups whose layers are spread evenly over the stages, and the part of them that a stage holds. Never does: divide
blocks into stages (`stages` does). Called by: the configuration (memory plan), the worker of a rank.

All stages use the same block tables, so a block has a part in each of them. A group with many layers in one stage and none in
another would leave room empty in the second one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import product

import msgspec

from core.api.specs import KVGroup
from core_runtime.specs.kv_groups import MAX_GROUPS, group_layers, keyed_layers, page_bytes, place_bytes, state_blocks
from core_runtime.specs.stages import Range


def groups_of_stages(
    windows: Sequence[int | None],
    layer_bytes: Sequence[int],
    stages: Sequence[Range],
    *,
    hybrid: bool,
    states: Collection[int],
    drafts: bool,
    strided: bool = False,
) -> tuple[KVGroup, ...]:
    """Divide layers into groups, see `group_layers`. stages: layers of each stage."""
    if len(stages) == 1:
        return group_layers(windows, layer_bytes, hybrid=hybrid, strided=strided, states=states, drafts=drafts)
    keyed = keyed_layers(layer_bytes, states)
    alike = _by_window(windows, keyed)
    is_divided = hybrid and set(alike) != {None} and len({layer_bytes[layer] for layer in keyed}) == 1
    if not is_divided:
        alike = {None: keyed} if keyed else {}
    kinds = sorted(alike, key=lambda window: (window is not None, window or 0))
    counts = _counts([[_held(alike[window], stage) for stage in stages] for window in kinds]) if is_divided else [1]
    groups: list[KVGroup] = []
    for window, count in zip(kinds, counts, strict=False):
        groups += [
            KVGroup("full" if window is None else "sliding", members, window)
            for members in _spread(alike[window], stages, count)
        ]
    groups += _state_groups(groups, layer_bytes, stages, states, drafts=drafts)
    return tuple(groups)


def _by_window(windows: Sequence[int | None], layers: Sequence[int]) -> dict[int | None, list[int]]:
    """Return layers by their window."""
    found: dict[int | None, list[int]] = {}
    for layer in layers:
        found.setdefault(windows[layer], []).append(layer)
    return found


def of_stage(groups: Sequence[KVGroup], stage: Range) -> tuple[KVGroup, ...]:
    """Return the groups with the layers of one stage alone, numbered from its first one on; some may be empty."""
    return tuple(
        msgspec.structs.replace(group, layers=tuple(layer - stage[0] for layer in _held(group.layers, stage)))
        for group in groups
    )


def stages_page_bytes(groups: Sequence[KVGroup], layer_bytes: Sequence[int], stages: Sequence[Range]) -> int:
    """Return the bytes of one block in all stages."""
    return sum(page_bytes(of_stage(groups, stage), layer_bytes[slice(*stage)]) for stage in stages)


def _held(layers: Collection[int], stage: Range) -> list[int]:
    return [layer for layer in layers if stage[0] <= layer < stage[1]]


def _spread(layers: Sequence[int], stages: Sequence[Range], count: int) -> list[tuple[int, ...]]:
    """Return at most `count` groups of layers, each with an equal part of every stage's."""
    groups: list[list[int]] = [[] for _ in range(count)]
    for stage in stages:
        mine = _held(layers, stage)
        size = max(-(-len(mine) // count), 1)
        for place, layer in enumerate(mine):
            groups[place // size].append(layer)
    return [tuple(group) for group in groups if group]


def _counts(held: Sequence[Sequence[Sequence[int]]]) -> list[int]:
    """Return the number of groups of each kind of layers: the fewest places left empty, then the fewest groups.

    held: layers of each kind in each stage.
    """
    num_layers = sum(len(layers) for kind in held for layers in kind)

    def empty(counts: Iterable[int]) -> tuple[int, int]:
        counts = tuple(counts)
        places = 0
        for stage in zip(*held, strict=True):
            places += max(-(-len(layers) // count) for layers, count in zip(stage, counts, strict=True))
        return places * sum(counts) - num_layers, sum(counts)

    largest = [min(max(map(len, kind)), MAX_GROUPS) for kind in held]
    most = max(MAX_GROUPS, len(held))
    possible = (counts for counts in product(*(range(1, size + 1) for size in largest)) if sum(counts) <= most)
    return list(min(possible, key=empty))


def _state_groups(
    keyed: Sequence[KVGroup],
    layer_bytes: Sequence[int],
    stages: Sequence[Range],
    states: Collection[int],
    *,
    drafts: bool,
) -> list[KVGroup]:
    """Return the groups of layers with a state: as many layers of a stage as its other groups have, equal states together."""
    if not states:
        return []
    count = 1
    for stage in stages:
        places = max((len(_held(group.layers, stage)) for group in keyed), default=0)
        if places:
            count = max(count, -(-len(_held(states, stage)) // places))
    count = min(count, max(MAX_GROUPS - len(keyed), 1))
    by_size = sorted(sorted(states), key=lambda layer: layer_bytes[layer])
    groups = [KVGroup("state", members) for members in _spread(by_size, stages, count)]
    found = []
    for place, group in enumerate(groups, len(keyed)):
        most = 0
        for stage in stages:
            local, own_bytes = of_stage([*keyed, *groups], stage), layer_bytes[slice(*stage)]
            most = max(most, state_blocks(local[place], place_bytes(local, own_bytes), own_bytes))
        found.append(msgspec.structs.replace(group, num_state_blocks=most, num_spare_blocks=most if drafts else 0))
    return found
