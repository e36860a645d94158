"""Ranks of one host: their shared memory, and the communicator in it.

Owns: `SharedGroup`, one process's end of the memory; `SharedCommunicator`, operations on tensors; the native code waits and
adds. Never does: start a process, or give a message a meaning.
Called by: the executor `mp` (makes the group), the runtime (makes the communicator), the models of ranks.
"""

from __future__ import annotations

import mmap
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.api.errors import UserError
from core.api.reason import Reason
from core_platforms.cpu.checks import check_rows
from core_platforms.cpu.extension import kernels_or_reason

SPIN_MICROSECONDS = 30
ALIGNMENT = mmap.ALLOCATIONGRANULARITY
GAVE_UP = "another rank gave this step up"
"""Message of the RuntimeError in a command that another rank has aborted; `native/module.cpp` has it too."""


def native_ranks() -> ModuleType:
    """Return the native extension. Raises UserError where it was not built."""
    native = kernels_or_reason()
    if isinstance(native, Reason):
        raise UserError(f"Ranks need the native extension of the cpu platform: {native}; use one rank.")
    return native


def group_bytes(size: int, slot_bytes: int) -> int:
    """Return the size of the memory of a group."""
    nbytes: int = native_ranks().ranks_bytes(size, slot_bytes)
    return nbytes


class SharedGroup:
    """One process's end of a group of ranks in shared memory.

    descriptor: the memory, a zeroed file of `group_bytes`.
    slot_bytes: bytes that a rank can show the others at a time.
    offset: place of the group in the memory, a multiple of `ALIGNMENT`.

    Operations of one command are counted from `begin`. All of them raise RuntimeError once the group is broken, and in a
    command that a rank gave up.
    """

    def __init__(self, descriptor: int, rank: int, size: int, slot_bytes: int, offset: int = 0) -> None:
        self.native = native_ranks()
        self.rank = rank
        self.size = size
        self.slot_bytes = slot_bytes
        self._memory = mmap.mmap(descriptor, group_bytes(size, slot_bytes), offset=offset)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self.handle: Any = self.native.ranks_open(self._bytes.data_ptr(), rank, size, slot_bytes)
        self._length = np.zeros(1, np.int64)

    def set_patience(self, limit_s: float, spin_microseconds: int = SPIN_MICROSECONDS) -> None:
        """Set how long to wait for a silent rank, 0 for ever, and how long to look for it before going to sleep."""
        self.native.ranks_patience(self.handle, spin_microseconds, int(limit_s * 1000))

    def begin(self, command: int) -> None:
        """Begin the command with this number; numbers rise."""
        self.native.ranks_begin(self.handle, command)

    def abort(self) -> None:
        """Give up the present command on all ranks."""
        self.native.ranks_abort(self.handle)

    def end(self) -> None:
        """Break the group: no rank waits for another one any more."""
        self.native.ranks_break(self.handle)

    @property
    def late(self) -> int:
        """The rank that the latest TimeoutError waited for; negative: there was none."""
        rank: int = self.native.ranks_late(self.handle)
        return rank

    def write(self, data: bytes) -> None:
        """Send bytes to all other ranks; only rank 0 does."""
        self.native.ranks_write(self.handle, _address(np.frombuffer(data, np.uint8)), len(data))

    def read(self, count: int) -> bytes:
        """Read bytes that rank 0 has sent; waits as long as it takes."""
        data = np.empty(count, np.uint8)
        self.native.ranks_read(self.handle, _address(data), count, False)
        return data.tobytes()

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.native.ranks_barrier(self.handle)

    def broadcast(self, array: NDArray[Any], root: int) -> None:
        """Replace a contiguous array by the root's."""
        self.native.ranks_broadcast(self.handle, root, _address(array), array.nbytes)

    def share(self, data: bytes, root: int = 0) -> bytes:
        """Return the root's bytes, of any length."""
        length = self._length
        length[0] = len(data)
        self.broadcast(length, root)
        found = np.frombuffer(data, np.uint8) if self.rank == root else np.empty(int(length[0]), np.uint8)
        if len(found):
            self.broadcast(found, root)
        return data if self.rank == root else found.tobytes()

    def exchange(self, data: bytes) -> list[bytes]:
        """Return the bytes of all ranks, which all have the same length."""
        own = np.frombuffer(data, np.uint8)
        out = np.empty((self.size, len(own)), np.uint8)
        self.native.ranks_exchange(self.handle, _address(own), len(own), 0, _address(out))
        return [row.tobytes() for row in out]


class SharedCommunicator:
    """Operations on tensors of a group; implements `core_runtime.contracts.Communicator`."""

    capturable = True

    def __init__(self, group: SharedGroup) -> None:
        self.rank = group.rank
        self.size = group.size
        self._group = group
        self._sum = group.native.ranks_sum
        self._gather = group.native.ranks_gather
        self._exchange = group.native.ranks_exchange

    def all_reduce(self, x: Tensor) -> None:
        """Replace x, float32 [T, H], by the sum over all ranks."""
        width = x.shape[1]
        rows, stride = check_rows(x, width, "x")
        self._check_width(width)
        self._sum(self._group.handle, x.data_ptr(), stride, rows, width)

    def all_gather(self, x: Tensor, out: Tensor, start: int, root: int | None = None) -> None:
        """Write x of each rank to its columns of out, on all ranks or the root alone."""
        width, whole = x.shape[1], out.shape[1]
        rows, stride = check_rows(x, width, "x")
        _, out_stride = check_rows(out, whole, "out")
        widest = -(-whole // self.size)
        if start < 0 or start + width > whole or width > widest:
            raise ValueError(f"columns {start} to {start + width} of {whole}: expected at most {widest} of each rank")
        self._check_width(widest)
        self._gather(
            self._group.handle, x.data_ptr(), stride, rows, start, width, widest, out.data_ptr(), out_stride,
            -1 if root is None else root,
        )  # fmt: skip

    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        """Write this rank's rows of the sum over all ranks to out."""
        self.all_reduce(x)
        count = x.shape[0] // self.size
        out.copy_(x[self.rank * count : (self.rank + 1) * count])

    def all_to_all(self, x: Tensor, out: Tensor) -> None:
        """Send the i-th of `size` equal parts of x to rank i."""
        if x.nbytes != out.nbytes or x.nbytes % self.size or not (x.is_contiguous() and out.is_contiguous()):
            raise ValueError(f"x and out: expected two contiguous tensors of one size, in {self.size} equal parts")
        self._exchange(self._group.handle, x.data_ptr(), x.nbytes // self.size, 1, out.data_ptr())

    def broadcast(self, x: Tensor, root: int) -> None:
        """Replace x, contiguous, by the root's."""
        self._group.broadcast(x.view(torch.uint8).numpy(), root)

    def _check_width(self, width: int) -> None:
        if 4 * width + 64 > self._group.slot_bytes:
            raise ValueError(f"{width} numbers a row, expected at most {(self._group.slot_bytes - 64) // 4}")


class SharedLink:
    """The stream of a group of two ranks; implements `core_runtime.contracts.Link`. Rank 0 of the group sends."""

    def __init__(self, group: SharedGroup) -> None:
        self._group = group

    def send(self, x: Tensor) -> None:
        """Send x, contiguous; waits while the stream is full."""
        if x.nbytes:
            self._group.native.ranks_write(self._group.handle, x.data_ptr(), x.nbytes)

    def recv(self, x: Tensor) -> None:
        """Replace x, contiguous, by the next tensor; waits as long as the group's patience lasts."""
        if x.nbytes:
            self._group.native.ranks_read(self._group.handle, x.data_ptr(), x.nbytes, True)


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
