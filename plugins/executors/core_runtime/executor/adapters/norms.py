"""The norms that an adapter replaces, as the model computes with them.

Owns: their preparation, and which norms of a model there are. Never does: read a file, or place a change. Called by: the
reading of adapters, and the placed adapters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from core.api.specs import RowOrder
from core_runtime.layers.adapted_norms import NormChange
from core_runtime.models.adapters.fitting import NormPart
from core_runtime.models.adapters.layers import OUTER, LayerKey
from core_runtime.models.decoder_weights import DecoderWeights
from core_runtime.models.norm import Norm
from core_runtime.models.tensors.row_order import row_order


def norms_of(weights: DecoderWeights) -> Iterator[tuple[LayerKey, Norm]]:
    """Yield the norms of a model, with the keys that `adapted_norms` gives them."""
    for index, block in enumerate(weights.blocks):
        for role, norm in block.norms.items():
            yield LayerKey(index, role), norm
    outer = {
        "embed": None if weights.embedding is None else weights.embedding.norm,
        "final": None if weights.head is None else weights.head.norm,
        "layers": None if weights.layer_inputs is None else weights.layer_inputs.norm,
    }
    for role, found in outer.items():
        if found is not None:
            yield LayerKey(OUTER, role), found


def norm_changes(changes: Mapping[LayerKey, NormPart], device: torch.device) -> dict[LayerKey, NormChange]:
    """Return the changes of norms, by key."""
    found = {}
    for key, (norm, change) in changes.items():
        weight, bias = change.weight, change.bias
        if weight is not None:
            # As in the model's own norms, the family's offset and factor are in the weights.
            weight = (_ordered(weight, norm.orders) + norm.part.spec.offset) * norm.part.spec.scale
            weight = weight.view(norm.part.shape).to(device)
        if bias is not None:
            bias = _ordered(bias, norm.orders).view(norm.part.shape).to(device)
        found[key] = NormChange(weight, bias)
    return found


def _ordered(tensor: Tensor, orders: Sequence[RowOrder]) -> Tensor:
    """Return a float32 copy [n] in the engine's order."""
    flat = tensor.flatten().to(torch.float32, copy=True)
    return flat[row_order(orders, len(flat))] if orders else flat
