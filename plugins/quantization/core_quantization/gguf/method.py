"""The quantization method of GGUF checkpoints.

Owns: the canonical format of each tensor type, and the translation. Never does: keep a dense copy of a packed weight.
Called by: the memory plan (`plan`), loading (`pack`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from core.api.errors import CheckpointError
from core.api.specs import Activation, DensePlan, LayerSpec, PartPlan, Unsupported
from core_quantization.gguf.blocks import FORMATS, BlockFormat
from core_runtime.specs.checkpoint import CheckpointManifest

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import Codebook, IntGroups, StoredRows, SuperGroups

ROW_SCALE_BYTES = 4
PLAIN = ("F32", "F16", "BF16", "F64")
CHUNK_BYTES = 1 << 20
SHARD_MULTIPLE = 32  # a canonical weight can be cut at any multiple of this number of inputs


class GGUFMethod:
    """The quantization method of one GGUF checkpoint, of the kind `quantization`.

    manifest: the checkpoint's tensors.
    activation: precision to which a packed layer's inputs are rounded.
    """

    def __init__(self, manifest: CheckpointManifest, activation: Activation) -> None:
        self.manifest = manifest
        self.activation = activation

    def plan(self, spec: LayerSpec) -> DensePlan | PartPlan | Unsupported:
        """Plan a part. Plain tensors are left to the core; block types become canonical weights of exactly the same
        values.
        """
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
        scales = self._scales(spec, row)
        return PartPlan(
            reads=(name, *scales),
            format=row.form,
            activation=self.activation,
            fuse_key=f"gguf/{info.dtype}/{self.activation}/{len(scales)}",
            nbytes=row.nbytes(*info.shape) + len(scales) * info.shape[0] * ROW_SCALE_BYTES,
            shard_multiple=SHARD_MULTIPLE,
        )

    def pack(self, spec: LayerSpec, tensors: dict[str, Tensor]) -> IntGroups | SuperGroups | Codebook:
        """Return the tensor's blocks (uint8 [N, bytes a row]) as a canonical weight. Copies everything. Raises
        CheckpointError.
        """
        name, raw, row = self._blocks(spec, tensors)
        return self._packed(spec, tensors, name, raw, row)

    def pack_part(
        self, spec: LayerSpec, tensors: dict[str, Tensor], rows: Tensor | None, columns: slice | None
    ) -> IntGroups | SuperGroups | Codebook:
        """Return some rows, and the blocks of some inputs: the `PacksParts` contract."""
        name, raw, row = self._blocks(spec, tensors)
        first = 0
        if columns is not None:
            # Whole blocks first, of which the file's other blocks are never read.
            first = columns.start // row.block_size
            stop = -(-columns.stop // row.block_size)
            raw = raw[:, first * row.block_bytes : stop * row.block_bytes]
        raw = raw if rows is None else raw.index_select(0, rows)
        weight = self._packed(spec, tensors, name, raw, row)
        start = first * row.block_size
        if columns is None or weight.shape[1] == columns.stop - columns.start:
            return weight
        return weight.columns(slice(columns.start - start, columns.stop - start))

    def _packed(
        self, spec: LayerSpec, tensors: dict[str, Tensor], name: str, raw: Tensor, row: BlockFormat
    ) -> IntGroups | SuperGroups | Codebook:
        """Return blocks as a canonical weight. Raises CheckpointError."""
        from core_runtime.weights.formats import Codebook
        from core_runtime.weights.stored_rows import not_finite

        weight = translate(raw, row)
        for scale in self._scales(spec, row):
            assert isinstance(weight, Codebook), "only codebooks have a scale of the whole tensor"
            weight = replace(weight, row_scale=tensors[scale].float().reshape(1, 1).repeat(len(raw), 1))
        problem = weight.problem()
        if problem is not None:
            raise CheckpointError(not_finite(name, problem))
        return weight

    def stored(self, spec: LayerSpec, tensors: dict[str, Tensor]) -> StoredRows | None:
        """Return the tensor's blocks as they are; None with a scale of the whole tensor. Raises CheckpointError."""
        from core_runtime.weights.stored_rows import stored_rows

        name, raw, row = self._blocks(spec, tensors)
        if self._scales(spec, row):
            return None
        return stored_rows(name, self.manifest.tensors[name].dtype, raw, partial(translate, row=row))

    def _blocks(self, spec: LayerSpec, tensors: dict[str, Tensor]) -> tuple[str, Tensor, BlockFormat]:
        """Return a part's tensor: its name, its blocks by rows, and their type. Raises CheckpointError."""
        name = f"{spec.name}.weight"
        info = self.manifest.tensors[name]
        raw = tensors[name]
        row = FORMATS[info.dtype]
        n, k = info.shape
        expected = (n, k // row.block_size * row.block_bytes)
        if tuple(raw.shape) != expected:
            raise CheckpointError(
                f"Tensor '{name}' arrived as {tuple(raw.shape)} bytes; {info.dtype} needs {expected}."
            )
        return name, raw, row

    def _scales(self, spec: LayerSpec, row: BlockFormat) -> list[str]:
        """Return the name of the tensor with the scale of the whole matrix, where there is one."""
        name = f"{spec.name}.weight_scale_2"
        return [name] if row.form == "nvfp4" and name in self.manifest.tensors else []


def translate(raw: Tensor, row: BlockFormat) -> IntGroups | SuperGroups | Codebook:
    """Convert uint8 [N, bytes a row] to a canonical weight, some rows at a time so that temporaries stay small."""
    import torch

    from core_runtime.weights.formats import Codebook, IntGroups, SuperGroups

    source = raw.contiguous().numpy()
    n, row_bytes = source.shape
    step = max(1, CHUNK_BYTES // row_bytes)
    tensors: dict[str, Tensor] = {}
    for start in range(0, n, step):
        part = source[start : start + step]
        rows = len(part)
        blocks = part.reshape(-1, row.block_bytes)
        # A damaged file may contain infinite scales; `pack` checks for them afterwards.
        with np.errstate(invalid="ignore"):
            parts = row.unpack(blocks)
        for name, unpacked in parts.items():
            by_row = torch.from_numpy(unpacked.reshape(rows, -1))
            if name not in tensors:
                tensors[name] = by_row.new_empty(n, by_row.shape[1])
            tensors[name][start : start + rows] = by_row
    if row.form == "nvfp4":
        tensors["scale"] = tensors["scale"].view(torch.float8_e4m3fn)
    if "kind" in row.attributes:
        return Codebook(**row.attributes, **tensors)
    build = IntGroups if row.form.endswith("_groups") else SuperGroups
    return build(**row.attributes, **tensors)


def dequantized(raw: Tensor, dtype: str, k: int) -> Tensor:
    """Return float32 [N, k] of uint8 [N, bytes a row], for matrices that do not stay packed. dtype: the block type."""
    weight = translate(raw, FORMATS[dtype])
    return weight.dequantize().view(-1, k)
