"""A group of ranks on several hosts: shared memory inside a host, a wire between the first ranks of the hosts.

Owns: `SpanningGroup`, one process's end, with the methods of `SharedGroup`. Never does: start a process, or give a message a
meaning. Called by: the executor `mp` (makes the group), its communicator and its link.

A sum is that of each host's ranks, then that of the hosts in the same tree, so it has the bits of one host where each host has
as many ranks, and a power of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core_distributed.hosts.wire import Wire
from core_platforms.cpu.ranks import GAVE_UP, SPIN_MICROSECONDS, SharedGroup

Result = TypeVar("Result")


class SpanningGroup:
    """One process's end of a group.

    local: the ranks of this host. given_up: int64 [1] in their shared memory, the newest command that one of them gave up.
    wire: the way to the other hosts; None: another rank of this host has it.
    counts: ranks of the group on each host. place: of this host among them.

    Operations of one command are counted from `begin`, and raise what those of `SharedGroup` raise.
    """

    def __init__(
        self, local: SharedGroup, given_up: NDArray[np.int64], wire: Wire | None, counts: Sequence[int], place: int
    ) -> None:
        self.local = local
        self.wire = wire
        self.late = -1
        self.size = sum(counts)
        self._firsts = [sum(counts[:host]) for host in range(len(counts))]
        self._place = place
        self.rank = self._firsts[place] + local.rank
        self._given_up = given_up
        self._command = 0

    def set_patience(self, limit_s: float, spin_microseconds: int = SPIN_MICROSECONDS) -> None:
        """Set how long to wait for a silent rank, 0 for ever, and how long to look for it before going to sleep."""
        self.local.set_patience(limit_s, spin_microseconds)
        if self.wire is not None:
            self.wire.limit_s = limit_s

    def begin(self, command: int) -> None:
        """Begin the command with this number; numbers rise."""
        self._command = command
        self.local.begin(command)
        if self.wire is not None:
            self.wire.begin(command)

    def abort(self) -> None:
        """Give up the present command on all ranks."""
        self._given_up[0] = max(int(self._given_up[0]), self._command)
        self.local.abort()
        if self.wire is not None:
            self.wire.abort()

    def end(self) -> None:
        """Break the group: no rank of this host waits for another one any more; may be called in any thread."""
        self.local.end()
        if self.wire is not None:
            self.wire.end()

    def write(self, data: bytes) -> None:
        """Send bytes to all other ranks, once to each host; only rank 0 does."""
        assert self.wire is not None, "rank 0 is the first of its host"
        self.wire.write(data)
        self.local.write(data)

    def read(self, count: int, *, limited: bool = False) -> bytes:
        """Read bytes that rank 0 has sent. limited: within the limit of a step, else as long as it takes."""
        if self.wire is None:
            return self.local.read(count)
        data = self.wire.read(count, limited=limited)
        self.local.write(data)
        return data

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.inside(self.local.barrier)
        if self.wire is not None:
            self._outside(self.wire.exchange, b"")
        self.inside(self.local.barrier)

    def broadcast(self, array: NDArray[Any], root: int) -> None:
        """Replace a contiguous array by the root's."""
        if not array.nbytes:
            return
        home = max(place for place, first in enumerate(self._firsts) if first <= root)
        if home == self._place:
            self.inside(self.local.broadcast, array, root - self._firsts[home])
        if self.wire is not None:
            data = self._outside(self.wire.broadcast, array.tobytes(), home)
            if home != self._place:
                array.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
        if home != self._place:
            self.inside(self.local.broadcast, array, 0)

    def share(self, data: bytes, root: int = 0) -> bytes:
        """Return the root's bytes, of any length."""
        length = np.array([len(data)], np.int64)
        self.broadcast(length, root)
        found = np.frombuffer(data, np.uint8) if self.rank == root else np.empty(int(length[0]), np.uint8)
        self.broadcast(found, root)
        return found.tobytes()

    def exchange(self, data: bytes) -> list[bytes]:
        """Return the bytes of all ranks, which all have the same length."""
        own = b"".join(self.inside(self.local.exchange, data))
        whole = b""
        if self.wire is not None:
            whole = b"".join(self._outside(self.wire.exchange, own))
        if self.local.size > 1:
            spread = np.frombuffer(whole, np.uint8) if self.wire else np.empty(len(data) * self.size, np.uint8)
            if len(spread):
                self.inside(self.local.broadcast, spread, 0)
            whole = spread.tobytes()
        return [whole[start : start + len(data)] for start in range(0, len(whole), len(data))]

    def gather(self, data: bytes) -> list[bytes]:
        """Return the bytes of all ranks on rank 0, nothing elsewhere; all have the same length."""
        own = b"".join(self.inside(self.local.exchange, data))
        parts = None if self.wire is None else self._outside(self.wire.gather, own)
        whole = b"".join(parts or ())
        return [whole[start : start + len(data)] for start in range(0, len(whole), len(data))]

    def add(self, x: Tensor) -> None:
        """Replace x, float32, by the sum over all hosts; x is the sum of this host's ranks."""
        flat = x.contiguous()
        if self.wire is not None:
            parts = self._outside(self.wire.exchange, bytes_of(flat))
            total = _tree([np.frombuffer(part, np.float32) for part in parts])
            flat = torch.from_numpy(total).view(x.shape)
        if self.local.size > 1 and flat.numel():
            self.inside(self.local.broadcast, flat.numpy(), 0)
        x.copy_(flat)

    def inside(self, call: Callable[..., Result], *arguments: object) -> Result:
        """Call something of the local group, whose failures concern the other hosts too."""
        try:
            return call(*arguments)
        except TimeoutError:
            self.late = self._firsts[self._place] + self.local.late
            raise
        except RuntimeError as error:
            if self.wire is not None and GAVE_UP in str(error):
                self.wire.abort()
            raise

    def _outside(self, call: Callable[..., Result], *arguments: object) -> Result:
        """Call something of the wire."""
        assert self.wire is not None
        try:
            return call(*arguments)
        except TimeoutError:
            self.late = self._firsts[self.wire.late]
            raise
        except RuntimeError as error:
            if GAVE_UP in str(error):
                self.local.abort()
            raise


def bytes_of(x: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor."""
    return memoryview(x.reshape(-1).view(torch.uint8).numpy())


def _tree(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the sum of the first half (the largest power of two), plus that of the rest."""
    if len(parts) == 1:
        return parts[0]
    half = 1 << ((len(parts) - 1).bit_length() - 1)
    return _tree(parts[:half]) + _tree(parts[half:])
