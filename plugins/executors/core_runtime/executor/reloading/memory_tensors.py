"""Tensors received in memory, kept so that they can be read again: while the engine sleeps, by the next update, and by the
next engine process.

Owns: `KeptTensors`: a file in memory, and the places in it. Never does: know what a tensor is for. Called by: the reloader.

Tensors are only ever appended. Those that are no longer needed become holes, which take no memory.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence

import torch
import xxhash
from torch import Tensor

from core_runtime.executor.reloading.prepared_writer import TYPES
from core_runtime.specs.checkpoint import TensorInfo
from core_supervision.link.anonymous_file import anonymous_file
from core_supervision.link.sparse_file import PAGE, punch, write_at

PIECE = 64 << 20
"""Bytes that are copied per call."""

DTYPES = {name: dtype for dtype, name in TYPES.items()}


class KeptTensors:
    """A file in memory that holds tensors.

    descriptor: the file, which outlives this process; None: make a private one when it is first needed.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor

    def keep(self, memory: memoryview, wanted: Sequence[TensorInfo]) -> tuple[tuple[TensorInfo, ...], str]:
        """Copy tensors into the file. Returns their places in it, and a digest of their names, types, shapes and bytes.

        wanted: tensors with their places in `memory`, uint8.
        Raises OSError when there is not enough memory.
        """
        file = self._file()
        digest = xxhash.xxh3_128()
        end = os.fstat(file).st_size
        places: list[TensorInfo] = []
        for info in wanted:
            # Each tensor starts at a page: it is mapped by itself, mappings start at pages, and a hole frees whole
            # pages only.
            start = -(-end // PAGE) * PAGE
            end = start + info.nbytes
            digest.update(repr((info.name, info.dtype, info.shape)).encode())
            for offset in range(0, info.nbytes, PIECE):
                length = min(PIECE, info.nbytes - offset)
                piece = memory[info.offset + offset : info.offset + offset + length]
                digest.update(piece)
                write_at(file, piece, start + offset)
            places.append(TensorInfo(info.name, info.shape, info.dtype, info.nbytes, 0, start, info.name))
        return tuple(places), digest.hexdigest()

    def read(self, info: TensorInfo) -> Tensor:
        """Read one tensor: a plain type in its shape, a packed one as uint8 [rows, bytes of a row]."""
        dtype = DTYPES.get(info.dtype)
        if not info.nbytes:
            return torch.empty(info.shape, dtype=dtype or torch.uint8)
        # Copy-on-write: torch needs a writable buffer, and the file must not change.
        data = mmap.mmap(self._file(), info.nbytes, access=mmap.ACCESS_COPY, offset=info.offset)
        raw = torch.frombuffer(data, dtype=torch.uint8)
        if dtype is not None:
            return raw.view(dtype).view(info.shape)
        num_rows = 1
        for size in info.shape[:-1]:
            num_rows *= size
        return raw.view(num_rows, -1)

    def keep_only(self, places: Iterable[TensorInfo]) -> None:
        """Free the memory of all other tensors, whether this engine or an earlier one kept them."""
        if self._descriptor is None:
            return
        end = 0
        for info in sorted(places, key=lambda info: info.offset):
            punch(self._descriptor, end, info.offset - end)
            end = -(-(info.offset + info.nbytes) // PAGE) * PAGE
        punch(self._descriptor, end, os.fstat(self._descriptor).st_size - end)

    def _file(self) -> int:
        if self._descriptor is None:
            self._descriptor = anonymous_file("core-kept-tensors", 0)
        return self._descriptor
