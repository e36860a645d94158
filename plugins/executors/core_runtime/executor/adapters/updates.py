"""The change of a layer as kernels compute it.

Owns: the arithmetic of DoRA's gains and of biases. Never does: read a file. Called by: the reading of adapters.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from core.api.specs import LayerSpec
from core_runtime.weights.adapter_contents import ModuleChange
from core_runtime.weights.low_rank import LowRank


def update_of(
    change: ModuleChange, part: LayerSpec, first: int, own: Mapping[str, Tensor], dtype: torch.dtype
) -> LowRank:
    """Return the update of a part of a layer.

    first: its first output in the layer.
    own: the base model's tensors, float32 by canonical name: matrix and bias for DoRA, the bias where it is replaced.
    dtype: of the matrices.
    """
    rows, inputs = part.shape
    a = torch.zeros(0, inputs, dtype=dtype) if change.a is None else change.a
    b = torch.zeros(rows, 0, dtype=dtype) if change.b is None else change.b
    gain: Tensor | None = None
    shift: Tensor | None = None
    if change.added_bias is not None:
        shift = change.scale * change.added_bias.float()
    if change.magnitude is not None:
        changed = own[f"{part.name}.weight"] + change.scale * (b.float() @ a.float())
        gain = change.magnitude.float() / changed.norm(dim=1)
        shift = None if shift is None else gain * shift
    if change.bias is not None or gain is not None:
        more = _new_bias(change, part, own, gain)
        shift = more if shift is None else shift + more
    return LowRank(_rounded(a, dtype), _rounded(b, dtype), change.scale, first, gain, shift)


def _rounded(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a matrix in a dtype, by way of float32."""
    return matrix if matrix.dtype is dtype else matrix.float().to(dtype)


def _new_bias(change: ModuleChange, part: LayerSpec, own: Mapping[str, Tensor], gain: Tensor | None) -> Tensor:
    """Return what replaces the layer's bias by the adapter's, or keeps it as it is under a gain."""
    old = own.get(f"{part.name}.bias", torch.zeros(part.shape[0]))
    new = old if change.bias is None else change.bias.float()
    # The layer's output holds the old bias already, and a gain multiplies it.
    return new - (old if gain is None else gain * old)
