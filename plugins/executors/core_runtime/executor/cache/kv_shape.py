"""Which bytes of a KV page are slices of the whole model's, for engines that divide it among another number of ranks.

Owns: `page_shape`. Never does: move a byte, or compare two shapes (`core_kv_connectors.peers` does). Called by: the worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.specs import STATE_TYPES, AttentionSpec, LatentSpec, MixerSpec, StateSpec
from core_kv_connectors.peers.page_shape import GroupShape, Layer, PageShape
from core_runtime.executor.cache.kv_memory import KVMemory
from core_runtime.executor.instance import ModelInstance
from core_runtime.specs.local_state import state_parts
from core_runtime.specs.module_spec import ModelSpec


def page_shape(memory: KVMemory, instances: Sequence[ModelInstance], whole: ModelSpec, ranks: int) -> PageShape:
    """Return the shape of an engine's pages, undivided where a layer's part in a rank is no slice of the whole.

    memory, instances: of one of `ranks` ranks. whole: the target, of which each rank has a part; a draft is whole in any case.
    """
    undivided = PageShape(ranks)
    backends = [backend for instance in instances for backend in instance.backends]
    if not memory.is_level or not all(getattr(backend, "heads_apart", False) for backend in backends):
        return undivided
    mixers = [mixer for instance in instances for mixer in instance.spec.mixers]
    wholes = [*whole.mixers, *mixers[len(whole.mixers) :]]
    buffers = memory.buffer_bytes
    groups: list[GroupShape] = []
    for group in memory.groups:
        layers: list[Layer] = []
        for size, layer in zip(buffers, group.layers, strict=False):
            sections = _sections(mixers[layer], wholes[layer], size, instances[0].cache.state_dtype)
            if not sections:
                return undivided
            layers.append(sections)
        groups.append(GroupShape.of(layers, group.num_state_blocks))
    return PageShape.of(ranks, buffers, groups)


def _sections(own: MixerSpec, whole: MixerSpec, size: int, state_dtype: str) -> Layer:
    """Return the sections of a layer; none: it has no such division. size: bytes of a block of a layer with keys."""
    if isinstance(own, StateSpec) and isinstance(whole, StateSpec):
        return _state_sections(own, whole, state_dtype)
    if isinstance(own, LatentSpec):
        return [(size, 1)]
    if isinstance(own, AttentionSpec) and isinstance(whole, AttentionSpec):
        return [(size, whole.num_kv_heads // own.num_kv_heads)]
    return []


def _state_sections(own: StateSpec, whole: StateSpec, dtype: str) -> Layer:
    """Return the sections of a layer with a state; none: its op is not divided."""
    mine, all_of_it = state_parts(own), state_parts(whole)
    if mine is None or all_of_it is None:
        return []
    (past, channels, rest), (_, all_channels, all_rest) = mine, all_of_it
    window, _, of_rest = dtype.partition("+")
    item, rest_item = STATE_TYPES[window], STATE_TYPES[of_rest or window]
    token = [(own * item, every // own) for own, every in zip(channels, all_channels, strict=True)]
    sections: Layer = past * token
    aligning = -past * sum(channels) * item % 4
    if aligning:
        sections = [*sections, (aligning, 0)]
    return [*sections, (rest * rest_item, all_rest // rest)] if rest else sections
