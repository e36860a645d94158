"""Operations on tensors of ranks on several hosts.

Owns: `SpanningCommunicator`, `SpanningLink`. Never does: know how bytes travel (the group does). Called by: models of ranks,
and stages.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from core_distributed.hosts.spanning import SpanningGroup, bytes_of
from core_platforms.cpu.ranks import SharedCommunicator

COLUMNS: Final = 2
"""int64 numbers before a rank's columns: its first column, and how many."""


class SpanningCommunicator:
    """Operations on tensors of a group; implements `core_runtime.contracts.Communicator`."""

    capturable = False

    def __init__(self, group: SpanningGroup) -> None:
        self.rank = group.rank
        self.size = group.size
        self._group = group
        self._local = SharedCommunicator(group.local)

    def all_reduce(self, x: Tensor) -> None:
        """Replace x, float32 [T, H], by the sum over all ranks."""
        self._group.inside(self._local.all_reduce, x)
        self._group.add(x)

    def all_gather(self, x: Tensor, out: Tensor, start: int, root: int | None = None) -> None:
        """Write x of each rank to its columns of out, on all ranks or the root alone."""
        rows, width = x.shape
        widest = -(-out.shape[1] // self.size)
        if start < 0 or start + width > out.shape[1] or width > widest:
            raise ValueError(f"columns {start} to {start + width} of {out.shape[1]}: expected at most {widest} a rank")
        columns = np.array([start, width], np.int64).tobytes()
        data = (columns + bytes(bytes_of(x.contiguous()))).ljust(8 * COLUMNS + 4 * rows * widest, b"\0")
        for part in self._group.gather(data) if root == 0 else self._group.exchange(data):
            first, count = np.frombuffer(part, np.int64, COLUMNS).tolist()
            values = np.frombuffer(part, np.float32, rows * count, 8 * COLUMNS)
            out[:, first : first + count] = torch.from_numpy(values.reshape(rows, count).copy())

    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        """Write this rank's rows of the sum over all ranks to out."""
        self.all_reduce(x)
        count = x.shape[0] // self.size
        out.copy_(x[self.rank * count : (self.rank + 1) * count])

    def all_to_all(self, x: Tensor, out: Tensor) -> None:
        """Send the i-th of `size` equal parts of x to rank i."""
        count = x.nbytes // self.size
        parts = self._group.exchange(bytes(bytes_of(x)))
        mine = b"".join(part[self.rank * count : (self.rank + 1) * count] for part in parts)
        _fill(out, mine)

    def broadcast(self, x: Tensor, root: int) -> None:
        """Replace x, contiguous, by the root's."""
        self._group.broadcast(x.view(torch.uint8).numpy(), root)


class SpanningLink:
    """The stream of a group of two ranks; implements `core_runtime.contracts.Link`. Rank 0 of the group sends."""

    def __init__(self, group: SpanningGroup) -> None:
        self._group = group

    def send(self, x: Tensor) -> None:
        """Send x, contiguous; waits while the stream is full."""
        if x.nbytes:
            self._group.write(bytes(bytes_of(x)))

    def recv(self, x: Tensor) -> None:
        """Replace x, contiguous, by the next tensor; waits as long as the group's patience lasts."""
        if x.nbytes:
            _fill(x, self._group.read(x.nbytes, limited=True))


def _fill(x: Tensor, data: bytes) -> None:
    x.view(-1).view(torch.uint8).numpy()[:] = np.frombuffer(data, np.uint8)
