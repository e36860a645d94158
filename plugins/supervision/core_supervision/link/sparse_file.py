"""Bytes in a file in memory, and their arrival from POSIX shared memory.

Owns: `shared_file`, `shared_memory`, `write_at`, `punch`. Never does: know what the bytes mean. Called by: the records of an
engine's state, kept tensors of weight updates, and adapters that were sent.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import stat
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

PAGE: Final = mmap.ALLOCATIONGRANULARITY
"""Bytes of a page: mappings start at one, and a hole frees whole ones only."""
FALLOC_FL_KEEP_SIZE: Final = 1
FALLOC_FL_PUNCH_HOLE: Final = 2


def shared_file(name: str) -> int:
    """Open POSIX shared memory for reading; the caller closes the descriptor. Raises OSError, or ValueError for its name."""
    plain = name.removeprefix("/")
    if not plain or "/" in plain or plain in (".", ".."):
        raise ValueError(f"{name!r} is no name of shared memory")
    # Without waiting: a pipe of that name would keep the engine until somebody writes into it.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(Path("/dev/shm", plain), flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{name!r} is no shared memory")
    return descriptor


def shared_memory(name: str) -> memoryview:
    """Map POSIX shared memory read-only. Raises OSError, or ValueError for an invalid name."""
    descriptor = shared_file(name)
    try:
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    finally:
        # The mapping stays valid without the descriptor.
        os.close(descriptor)


def write_at(file: int, raw: bytes | memoryview, offset: int) -> None:
    """Write all bytes at an offset. Raises OSError when there is no memory for them."""
    view = memoryview(raw)
    while view:
        count = os.pwrite(file, view, offset)
        view = view[count:]
        offset += count


def punch(file: int, offset: int, nbytes: int) -> None:
    """Free the memory of whole pages from an offset on. On a system without holes, the memory stays in use."""
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if fallocate is None or nbytes <= 0:
        return
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    length = -(-nbytes // PAGE) * PAGE
    if fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length):
        logger.warning("Memory of replaced tensors stays taken (%s).", os.strerror(ctypes.get_errno()))
