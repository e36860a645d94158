"""The layers of a model that adapters can change.

Owns: their names, and which part of a layer lies where in its outputs. Never does: hold a weight. Called by: the fitting of an
adapter, and the executor's placed adapters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from core.api.specs import LayerSpec, RowOrder
from core_runtime.layers.linear import Linear
from core_runtime.models.decoder import DecoderWeights
from core_runtime.specs.block_parts import mixer_parts
from core_runtime.specs.decoder_spec import DecoderSpec


class LayerKey(NamedTuple):
    """A linear layer of the model: number and role of a block's layer (see `DecoderSpec.block_linears`)."""

    block: int
    role: str


@dataclass(frozen=True, slots=True)
class AdaptedPart:
    """A part of a layer, as adapters see it.

    layer: the layer that computes it. first: index of its first output there.
    part: its description.
    orders: the orders that bring its rows into the engine's order.
    """

    layer: LayerKey
    first: int
    part: LayerSpec
    orders: tuple[RowOrder, ...]


def adapted_parts(spec: DecoderSpec) -> dict[str, AdaptedPart]:
    """Return the parts of all linear layers of blocks, by name."""
    found: dict[str, AdaptedPart] = {}
    for index in range(len(spec.blocks)):
        orders = mixer_parts(spec, index).orders
        for role, parts in spec.block_linears(index).items():
            first = 0
            for part in parts:
                found[part.name] = AdaptedPart(LayerKey(index, role), first, part, orders.get(part.name, ()))
                first += part.shape[0]
    return found


def adapted_linears(weights: DecoderWeights) -> Iterator[tuple[LayerKey, Linear]]:
    """Yield the layers that `adapted_parts` names."""
    for index, block in enumerate(weights.blocks):
        for role, linear in block.linears.items():
            yield LayerKey(index, role), linear
