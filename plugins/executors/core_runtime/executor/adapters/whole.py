"""Whole tensors of a block with an adapter, where nothing can be added to a product.

Owns: their preparation from the model's own tensors. Never does: read a file, or place a change. Called by: the reading of
adapters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from core_runtime.executor.adapters.own_tensors import OwnTensors
from core_runtime.layers.whole_change import WholeChange
from core_runtime.models.adapters.fitting import WholePart


def whole_changes(
    changes: Mapping[int, Sequence[WholePart]], own: OwnTensors, device: torch.device
) -> dict[int, WholeChange]:
    """Return the changes of blocks. own: reads the model's own tensors."""
    wanted = [name for parts in changes.values() for part in parts for name in _needed(part)]
    tensors = own((), wanted) if wanted else {}
    found = {}
    for block, parts in changes.items():
        params: dict[str, Tensor] = {}
        for part in parts:
            params |= {name: tensor.to(device) for name, tensor in _params_of(part, tensors).items()}
        found[block] = WholeChange(params)
    return found


def _needed(part: WholePart) -> list[str]:
    """Return the names of the model's tensors to which the adapter adds."""
    module, change = part
    found = []
    if change.a is not None and change.weight is None:
        found.append(f"{module.module}.weight")
    if change.added_bias is not None and change.bias is None:
        found.append(f"{module.module}.bias")
    return found


def _params_of(part: WholePart, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of one module that the adapter changes, float32 by their names in the block."""
    module, change = part
    weight, bias = change.weight, change.bias
    if change.a is not None and change.b is not None:
        base = own[f"{module.module}.weight"] if weight is None else weight.float()
        weight = base + change.scale * (change.b.float() @ change.a.float())
        if change.magnitude is not None:
            weight = weight * (change.magnitude.float() / weight.norm(dim=1)).unsqueeze(1)
    if change.added_bias is not None:
        base = own[f"{module.module}.bias"] if bias is None else bias.float()
        bias = base + change.scale * change.added_bias.float()
    named = {f"{module.name}.weight": weight, f"{module.name}.bias": bias}
    # A copy: a view would keep all that was read with it.
    return {name: tensor.to(torch.float32, copy=True) for name, tensor in named.items() if tensor is not None}
