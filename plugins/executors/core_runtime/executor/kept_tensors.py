"""Tensors that came from memory, kept so that they can be read again: while the engine sleeps, by the next update, and by the
engine that follows this one.

Owns: `KeptTensors`: a file in memory, and the places in it. Never does: know what a tensor is for. Called by: the reloader.

Tensors are only ever appended; those that are not needed any more become holes, which take no memory.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import xxhash
from torch import Tensor

from core.anonymous_file import anonymous_file
from core_runtime.executor.prepared_writer import TYPES
from core_runtime.specs.checkpoint import TensorInfo

logger = logging.getLogger(__name__)

PAGE = mmap.ALLOCATIONGRANULARITY
FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2
PIECE = 64 << 20
"""Bytes that are copied at once."""

DTYPES = {name: dtype for dtype, name in TYPES.items()}


class KeptTensors:
    """descriptor: of the file, which outlives this process; None: a file of our own, made when it is first needed."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor

    def keep(self, memory: memoryview, wanted: Sequence[TensorInfo]) -> tuple[tuple[TensorInfo, ...], str]:
        """Copy tensors. Returns their places here, and a digest of their names, types, shapes and bytes.

        wanted: each with its place in `memory`, uint8.
        Raises OSError when there is no memory left for them.
        """
        file = self._file()
        digest = xxhash.xxh3_128()
        end = os.fstat(file).st_size
        places: list[TensorInfo] = []
        for info in wanted:
            start = -(-end // PAGE) * PAGE
            end = start + info.nbytes
            digest.update(repr((info.name, info.dtype, info.shape)).encode())
            for offset in range(0, info.nbytes, PIECE):
                length = min(PIECE, info.nbytes - offset)
                piece = memory[info.offset + offset : info.offset + offset + length]
                digest.update(piece)
                _write(file, piece, start + offset)
            places.append(TensorInfo(info.name, info.shape, info.dtype, info.nbytes, 0, start, info.name))
        return tuple(places), digest.hexdigest()

    def read(self, info: TensorInfo) -> Tensor:
        """One tensor: of a plain type in its shape, of a packed one uint8 [rows, bytes of a row]."""
        dtype = DTYPES.get(info.dtype)
        if not info.nbytes:
            return torch.empty(info.shape, dtype=dtype or torch.uint8)
        data = mmap.mmap(self._file(), info.nbytes, access=mmap.ACCESS_COPY, offset=info.offset)
        raw = torch.frombuffer(data, dtype=torch.uint8)
        if dtype is not None:
            return raw.view(dtype).view(info.shape)
        num_rows = 1
        for size in info.shape[:-1]:
            num_rows *= size
        return raw.view(num_rows, -1)

    def keep_only(self, places: Iterable[TensorInfo]) -> None:
        """Give the memory of all other tensors back, whoever kept them: this engine, or one before it."""
        if self._descriptor is None:
            return
        end = 0
        for info in sorted(places, key=lambda info: info.offset):
            _punch(self._descriptor, end, info.offset - end)
            end = -(-(info.offset + info.nbytes) // PAGE) * PAGE
        _punch(self._descriptor, end, os.fstat(self._descriptor).st_size - end)

    def _file(self) -> int:
        if self._descriptor is None:
            self._descriptor = anonymous_file("core-kept-tensors", 0)
        return self._descriptor


def shared_memory(name: str) -> memoryview:
    """The bytes of POSIX shared memory, read-only. Raises OSError, ValueError for a name that is none."""
    plain = name.removeprefix("/")
    if not plain or "/" in plain or plain in (".", ".."):
        raise ValueError(f"{name!r} is no name of shared memory")
    descriptor = os.open(Path("/dev/shm", plain), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    finally:
        os.close(descriptor)


def _write(file: int, piece: memoryview, offset: int) -> None:
    while piece:
        count = os.pwrite(file, piece, offset)
        piece = piece[count:]
        offset += count


def _punch(file: int, offset: int, nbytes: int) -> None:
    """Make a hole of whole pages. Where the system has no holes, the memory stays taken."""
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if fallocate is None or nbytes <= 0:
        return
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    length = -(-nbytes // PAGE) * PAGE
    if fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length):
        logger.warning("Memory of replaced tensors stays taken (%s).", os.strerror(ctypes.get_errno()))
