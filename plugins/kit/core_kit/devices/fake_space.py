"""The address space of the fake device. Owns: its spans and how much is free. Called by: tests of the GPU runtime."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

POISON: Final = 0xA5
"""Byte that fills memory without defined content; as int64 it is no valid token."""


class FakeSpace:
    """The `AddressSpace` of the fake device. capacity: its memory in bytes."""

    granularity = 4096

    def __init__(self, capacity: int) -> None:
        self.free = capacity
        self._memory: dict[int, Tensor] = {}
        self._handles = 0

    def reserve(self, nbytes: int) -> int:
        """Reserve addresses without memory; returns the first."""
        memory = torch.full((nbytes,), POISON, dtype=torch.uint8)
        address: int = memory.data_ptr()
        self._memory[address] = memory
        return address

    def fill(self, address: int, nbytes: int) -> int:
        """Map memory to a span; it holds garbage, as on a real device."""
        if nbytes > self.free:
            raise MemoryError(f"{nbytes} bytes of {self.free}")
        self.free -= nbytes
        self._handles += 1
        return self._handles

    def empty(self, address: int, nbytes: int, handle: int) -> None:
        """Unmap a span and release its memory."""
        self.free += nbytes
        self._memory[address].fill_(POISON)

    def forget(self, address: int, nbytes: int) -> None:
        """Free reserved addresses."""
        del self._memory[address]

    def tensor(self, address: int, nbytes: int) -> Tensor:
        """Return uint8 [nbytes] at an address."""
        return self._memory[address][:nbytes]
