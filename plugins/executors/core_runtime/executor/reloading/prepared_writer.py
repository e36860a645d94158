"""Writer of prepared kernels to a data file, as they are made.

Owns: `PreparedWriter`: the places of blocks in the file, and the entries of an index. Never does: prepare a weight, or open a
file. Called by: the conversion (a file on disk), kept weights (a file in memory), spilled weights (a file without a name).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

import msgspec
import torch
from torch import Tensor

from core.version import __version__
from core_runtime.contracts import SavedKernel
from core_runtime.models.tensors.prepared import PAGE, VERSION, Block, MadeFor, PreparedIndex, PreparedKernel, Source
from core_runtime.specs.checkpoint import CheckpointManifest, TokenizerSource

NotedKernel = tuple[str, set[str], str, SavedKernel]
"""Arguments of a `Recorder` call: name, tensors that were read, layout, kernel."""

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


def written_kernels(
    file: BinaryIO, kernels: Iterable[NotedKernel], made_for: MadeFor, manifest: CheckpointManifest
) -> PreparedIndex:
    """Write kernels to an empty file and return their index. manifest: manifest of the checkpoint. Raises OSError."""
    writer = PreparedWriter(file)
    for name, reads, layout, saved in kernels:
        writer.kernel(name, reads, layout, saved)
    return PreparedIndex(
        version=VERSION,
        engine=__version__,
        made_for=made_for,
        source=Source(manifest.ref, {}, ""),
        # The index describes the kernels only; the rest is read from the checkpoint again.
        manifest=msgspec.structs.replace(manifest, config={}, tensors={}, tokenizer=TokenizerSource()),
        kernels=writer.kernels,
        stored=[],
        data_nbytes=file.tell(),
    )
