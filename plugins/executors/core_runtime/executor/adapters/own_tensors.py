"""The base model's own tensors, for adapters that depend on them.

Owns: their reading, matrix by matrix. Never does: keep one. Called by: the reading of adapters, in a thread next to steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from core.api.specs import LayerSpec, RowOrder
from core_runtime.executor.reloading.checkpoint import Checkpoint
from core_runtime.models.tensors.packing import Packing
from core_runtime.models.tensors.row_order import row_order

OwnTensors = Callable[[Sequence[tuple[LayerSpec, tuple[RowOrder, ...]]]], Mapping[str, Tensor]]
"""Reads matrices and biases of the base model: parts with the orders of their rows → float32 tensors by canonical name."""


def own_tensors(
    checkpoint: Checkpoint, packing: Packing, parts: Sequence[tuple[LayerSpec, tuple[RowOrder, ...]]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield matrices and biases of some parts, float32 in the engine's order of rows, by canonical name.

    parts: parts with the orders of their rows.

    A matrix has the numbers that the engine computes with: packed ones are unpacked, plain ones rounded to the model's dtype.
    """
    for spec, wanted in parts:
        reads = sorted(packing.reads([spec]))
        tensors = {name: tensor.clone() for name, tensor in checkpoint.loader.iter(checkpoint.manifest, reads)}
        yield f"{spec.name}.weight", packing.pack(spec, tensors, {spec.name: wanted}).weight.dequantize()
        if spec.bias:
            bias = tensors[f"{spec.name}.bias"].float()
            yield f"{spec.name}.bias", bias[row_order(wanted, len(bias))]
