"""The quantization method of GGUF checkpoints.

Owns: which canonical format a tensor type becomes, and the translation. Never does: hold a dense copy of a packed weight.
Called by: the memory plan (`plan`), loading (`pack`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from core.api.checkpoint import CheckpointManifest
from core.api.errors import CheckpointError
from core.api.specs import Activation, DensePlan, LayerSpec, PartPlan, Unsupported
from core_plugins.quantization.gguf.blocks import FORMATS, BlockFormat

if TYPE_CHECKING:
    from torch import Tensor

    from core.weights.formats import IntGroups

PLAIN = ("F32", "F16", "BF16", "F64")
CHUNK_BYTES = 1 << 20


class GGUFMethod:
    """Kind `quantization` for one checkpoint.

    manifest: the checkpoint's tensors.
    activation: precision to which a packed layer's inputs are rounded.
    """

    def __init__(self, manifest: CheckpointManifest, activation: Activation) -> None:
        self.manifest = manifest
        self.activation = activation

    def plan(self, spec: LayerSpec) -> DensePlan | PartPlan | Unsupported:
        """Plain tensors are left to the core, block types become integer groups of exactly the same values."""
        name = f"{spec.name}.weight"
        info = self.manifest.tensors.get(name)
        if info is None:
            return Unsupported(f"the checkpoint has no tensor '{name}'")
        if info.dtype in PLAIN:
            return DensePlan(reads=(name,))
        row = FORMATS.get(info.dtype)
        if row is None:
            supported = ", ".join([*PLAIN, *FORMATS])
            return Unsupported(f"tensor '{name}' has type {info.dtype}; supported are {supported}")
        if len(info.shape) != 2:
            return Unsupported(f"tensor '{name}' has shape {info.shape}; packed tensors must be matrices")
        form = f"int{row.bits}_groups"
        scale_type = np.dtype(row.scale_dtype)
        lowest = "minimum" if row.has_minimum else f"zero{row.zero}"
        return PartPlan(
            reads=(name,),
            format=form,
            activation=self.activation,
            fuse_key=f"{form}/{row.group_size}/{scale_type}/{lowest}/{self.activation}",
            nbytes=row.nbytes(*info.shape),
            shard_multiple=row.group_size,
        )

    def pack(self, spec: LayerSpec, tensors: dict[str, Tensor]) -> IntGroups:
        """The tensor's blocks (uint8 [N, bytes a row]) as integer groups; copies everything. Raises CheckpointError."""
        name = f"{spec.name}.weight"
        info = self.manifest.tensors[name]
        raw = tensors[name]
        row = FORMATS[info.dtype]
        n, k = info.shape
        row_bytes = k // row.block_size * row.block_bytes
        expected = (n, row_bytes)
        if tuple(raw.shape) != expected:
            raise CheckpointError(
                f"Tensor '{name}' arrived as {tuple(raw.shape)} bytes; {info.dtype} needs {expected}."
            )
        weight = translate(raw, row, k)
        finite = bool(weight.scale.isfinite().all())
        if weight.minimum is not None:
            finite = finite and bool(weight.minimum.isfinite().all())
        if not finite:
            raise CheckpointError(
                f"Tensor '{name}' holds scales that are not finite; the file is damaged, download it again."
            )
        return weight


def translate(raw: Tensor, row: BlockFormat, k: int) -> IntGroups:
    """uint8 [N, bytes a row] to integer groups of shape (N, k), some rows at a time so that temporaries stay small."""
    import torch

    from core.weights.formats import IntGroups

    source = raw.contiguous().numpy()
    n, row_bytes = source.shape
    values = np.empty((n, k * row.bits // 8), dtype=np.uint8)
    scale = np.empty((n, k // row.group_size), dtype=row.scale_dtype)
    minimum = np.empty_like(scale) if row.has_minimum else None
    step = max(1, CHUNK_BYTES // row_bytes)
    for start in range(0, n, step):
        stop = min(start + step, n)
        part = slice(start, stop)
        rows = stop - start
        blocks = source[part].reshape(-1, row.block_bytes)
        # A damaged file may hold infinite scales; `pack` looks for them afterwards.
        with np.errstate(invalid="ignore"):
            unpacked, scales, minima = row.unpack(blocks)
        values[part] = unpacked.reshape(rows, -1)
        scale[part] = scales.reshape(rows, -1)
        if minimum is not None and minima is not None:
            minimum[part] = minima.reshape(rows, -1)
    return IntGroups(
        bits=row.bits,
        group_size=row.group_size,
        values=torch.from_numpy(values),
        scale=torch.from_numpy(scale),
        minimum=None if minimum is None else torch.from_numpy(minimum),
        zero=row.zero,
    )
