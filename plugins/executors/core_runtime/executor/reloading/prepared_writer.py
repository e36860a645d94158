"""Writer of prepared kernels to a data file.

Owns: `PreparedWriter`: the places of blocks in the file, and the entries of an index. Never does: prepare a weight, or open a
file. Called by: the conversion (a file on disk), saved weights (a file of this engine).
"""

from __future__ import annotations

from typing import BinaryIO

import torch
from torch import Tensor

from core.version import __version__
from core_runtime.contracts import SavedKernel
from core_runtime.models.tensors.prepared import PAGE, VERSION, Block, MadeFor, PreparedIndex, PreparedKernel, Source
from core_runtime.specs.checkpoint import CheckpointManifest

TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
}
"""Type names of tensors that are stored as they are."""


class PreparedWriter:
    """Writes to the end of a data file.

    kernels: entries of the index. used: tensors that the kernels were made from. stored: names of plain tensors.
    """

    def __init__(self, data: BinaryIO) -> None:
        self._data = data
        self.kernels: dict[str, list[PreparedKernel]] = {}
        self.used: set[str] = set()
        self.stored: list[str] = []

    def kernel(self, name: str, reads: set[str], layout: str, saved: SavedKernel) -> None:
        """Write one kernel; see `Recorder`."""
        memory = self.block(saved.memory)
        tables = {key: self.block(table) for key, table in saved.tables.items()}
        entry = PreparedKernel(layout, saved.facts, memory, tables)
        self.kernels.setdefault(name, []).append(entry)
        self.used |= reads

    def block(self, tensor: Tensor) -> Block:
        """Write a tensor, starting at the next page."""
        place = self._data.tell()
        # Page-aligned, so that a reader can map each block.
        offset = -(-place // PAGE) * PAGE
        self._data.write(bytes(offset - place))
        raw = tensor.contiguous().flatten().view(torch.uint8)
        self._data.write(memoryview(raw.numpy()))
        return Block(offset, tensor.nbytes, TYPES.get(tensor.dtype, "U8"), tuple(tensor.shape))

    def index(self, settings: MadeFor, source: Source, manifest: CheckpointManifest) -> PreparedIndex:
        """Return the index of what has been written. settings: those that the kernels were made for."""
        size = self._data.tell()
        return PreparedIndex(VERSION, __version__, settings, source, manifest, self.kernels, self.stored, size)
