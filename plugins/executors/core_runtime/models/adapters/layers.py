"""The layers of a model that adapters can change.

Owns: their names, and which part of a layer lies where in its outputs. Never does: hold a weight. Called by: the fitting of an
adapter, and the executor's placed adapters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from core.api.specs import LayerSpec, RowOrder
from core_runtime.layers.linear import Linear
from core_runtime.models.decoder_weights import DecoderWeights
from core_runtime.models.mlp import SeparateExperts
from core_runtime.specs.block_parts import mixer_parts
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.mixer_parts import NormTensor


class LayerKey(NamedTuple):
    """A layer of the model: number and role of a block's linear layer (see `DecoderSpec.block_linears`) or norm
    (`DecoderSpec.block_norms`), `ABSORBED`, or `OUTER` and the role of one outside of blocks.

    expert: number of the expert whose layer it is, with role `gate_up` or `down`; -1: no expert's.
    """

    block: int
    role: str
    expert: int = -1


ABSORBED: Final = "absorbed"
"""Role of the up-projection of a latent, which is computed in two halves, head by head."""


OUTER: Final = -1
"""Number of the block in keys of layers outside of blocks."""
PROJECTIONS: Final = ("in", "out")
"""Roles of projections between embeddings and hidden states, which adapters cannot change."""


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


@dataclass(frozen=True, slots=True)
class AdaptedNorm:
    """A norm of the model, as adapters see it.

    key: its block and role. part: its description. orders: the orders that bring its numbers into the engine's order.
    """

    key: LayerKey
    part: NormTensor
    orders: tuple[RowOrder, ...] = ()


def adapted_norms(spec: DecoderSpec) -> dict[str, AdaptedNorm]:
    """Return the norms of blocks and around them, by name."""
    found = {}
    for index in range(len(spec.blocks)):
        orders = mixer_parts(spec, index).orders
        for role, norm in spec.block_norms(index).items():
            found[norm.name] = AdaptedNorm(LayerKey(index, role), norm, orders.get(norm.name, ()))
    for role, norm in spec.outer_norms().items():
        found[norm.name] = AdaptedNorm(LayerKey(OUTER, role), norm)
    return found


def adapted_parts(spec: DecoderSpec) -> dict[str, AdaptedPart]:
    """Return the parts of all linear layers of blocks, and of those around several streams, by name."""
    found: dict[str, AdaptedPart] = {}
    for index in range(len(spec.blocks)):
        mixers = mixer_parts(spec, index)
        layers = {LayerKey(index, role): parts for role, parts in spec.block_linears(index).items()}
        for expert, linears in enumerate(spec.expert_linears(index)):
            layers[LayerKey(index, "gate_up", expert)] = linears.gate_up
            layers[LayerKey(index, "down", expert)] = linears.down
        if mixers.absorbed is not None:
            layers[LayerKey(index, ABSORBED)] = (mixers.absorbed,)
        for key, parts in layers.items():
            first = 0
            for part in parts:
                found[part.name] = AdaptedPart(key, first, part, mixers.orders.get(part.name, ()))
                first += part.shape[0]
    for role, part in spec.projections().items():
        if role not in PROJECTIONS:
            found[part.name] = AdaptedPart(LayerKey(OUTER, role), 0, part, ())
    return found


def adapted_linears(weights: DecoderWeights) -> Iterator[tuple[LayerKey, Linear]]:
    """Yield the linear layers that `adapted_parts` names, except those of experts."""
    if weights.layer_inputs is not None:
        yield LayerKey(OUTER, "layers"), weights.layer_inputs.project
    if weights.streams is not None:
        for way, linears in (("into", weights.streams.into), ("back", weights.streams.back)):
            for number, linear in enumerate(linears):
                yield LayerKey(OUTER, f"{way}_{number}"), linear
    for index, block in enumerate(weights.blocks):
        for role, linear in block.linears.items():
            yield LayerKey(index, role), linear


def expert_layers(experts: SeparateExperts, block: int) -> Iterator[tuple[LayerKey, Linear]]:
    """Yield the linear layers of a block's experts."""
    for role, linears in (("gate_up", experts.gate_up), ("down", experts.down)):
        for expert, linear in enumerate(linears):
            yield LayerKey(block, role, expert), linear
