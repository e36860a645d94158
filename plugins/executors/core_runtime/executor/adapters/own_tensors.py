"""The base model's own tensors, for adapters that depend on them.

Owns: their reading, matrix by matrix. Never does: keep one. Called by: the reading of adapters, in a thread next to steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from core.api.specs import LayerSpec, RowOrder
from core_runtime.executor.reloading.checkpoint import Checkpoint
from core_runtime.models.tensors.packing import Packing
from core_runtime.models.tensors.row_order import row_order

Parts = Sequence[tuple[LayerSpec, tuple[RowOrder, ...]]]
"""Parts of layers with the orders of their rows."""


class OwnTensors(Protocol):
    """Reads tensors of the base model, for one adapter."""

    def __call__(self, parts: Parts, further: Sequence[str] = ()) -> Mapping[str, Tensor]:
        """Return matrices and biases of some parts, and further tensors, float32 by canonical name; see `own_tensors`."""
        ...


def own_tensors(
    checkpoint: Checkpoint, packing: Packing, parts: Parts, further: Sequence[str] = ()
) -> Iterator[tuple[str, Tensor]]:
    """Yield matrices and biases of some parts, float32 in the engine's order of rows, by canonical name.

    further: names of tensors that no layer packs, which are yielded as the checkpoint has them.

    A matrix has the numbers that the engine computes with: packed ones are unpacked, plain ones rounded to the model's dtype.
    """
    for spec, wanted in parts:
        reads = sorted(packing.reads([spec]))
        tensors = {name: tensor.clone() for name, tensor in checkpoint.loader.iter(checkpoint.manifest, reads)}
        yield f"{spec.name}.weight", packing.pack(spec, tensors, {spec.name: wanted}).weight.dequantize()
        if spec.bias:
            bias = tensors[f"{spec.name}.bias"].float()
            yield f"{spec.name}.bias", bias[row_order(wanted, len(bias))]
    if further:
        for name, tensor in checkpoint.loader.iter(checkpoint.manifest, sorted(further)):
            yield name, tensor.to(torch.float32, copy=True)
