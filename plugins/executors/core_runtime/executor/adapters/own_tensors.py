"""The base model's own tensors, for adapters that depend on them.

Owns: their reading, matrix by matrix. Never does: keep one. Called by: the reading of adapters, in a thread next to steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from core_runtime.executor.reloading.checkpoint import Checkpoint
from core_runtime.models.adapters.fitting import PartChange
from core_runtime.models.tensors.packing import Packing
from core_runtime.models.tensors.row_order import row_order


def own_tensors(
    checkpoint: Checkpoint, packing: Packing, changes: Sequence[PartChange]
) -> Iterator[tuple[str, Tensor]]:
    """Yield matrices and biases of some parts, float32 in the engine's order of rows, by canonical name.

    A matrix has the numbers that the engine computes with: packed ones are unpacked, plain ones rounded to the model's dtype.
    """
    for change in changes:
        spec = change.part.part
        reads = sorted(packing.reads([spec]))
        tensors = {name: tensor.clone() for name, tensor in checkpoint.loader.iter(checkpoint.manifest, reads)}
        orders = {spec.name: change.part.orders}
        if change.change.magnitude is not None:
            yield f"{spec.name}.weight", packing.pack(spec, tensors, orders).weight.dequantize()
        if spec.bias:
            bias = tensors[f"{spec.name}.bias"].float()
            yield f"{spec.name}.bias", bias[row_order(change.part.orders, len(bias))]
