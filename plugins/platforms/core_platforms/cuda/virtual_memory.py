"""Device memory that can be released by tag and restored at the same addresses.

Owns: the spans of each tag, and whether they are backed by memory. Never does: interpret the bytes.
Called by: the runtime.

The addresses of a span are reserved once; physical memory is mapped to them and unmapped. Tensors and recorded graphs
hold addresses, so they are valid again once the memory is restored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from core_runtime.contracts import MemoryTag


class AddressSpace(Protocol):
    """Address ranges of a device, and the memory mapped to them.

    granularity: bytes; every span is a multiple of it.
    """

    granularity: int

    def reserve(self, nbytes: int) -> int:
        """Reserve addresses without memory; returns the first."""
        ...

    def fill(self, address: int, nbytes: int) -> int:
        """Map memory to a span and return its handle. Raises MemoryError when there is not enough, UserError when the
        driver refuses for another reason; nothing is mapped then.
        """
        ...

    def empty(self, address: int, nbytes: int, handle: int) -> None:
        """Unmap a span and release its memory."""
        ...

    def forget(self, address: int, nbytes: int) -> None:
        """Free reserved addresses."""
        ...

    def tensor(self, address: int, nbytes: int) -> Tensor:
        """Return uint8 [nbytes] at an address."""
        ...


@dataclass(slots=True)
class Span:
    """A contiguous address range.

    nbytes: a multiple of the granularity.
    handle: of the mapped memory; None while released.
    memory: uint8 [nbytes].
    """

    address: int
    nbytes: int
    handle: int | None
    memory: Tensor


class TaggedMemory:
    """The spans of a device, by tag. settle: waits until the device has finished all work."""

    def __init__(self, space: AddressSpace, settle: Callable[[], None]) -> None:
        self._space = space
        self._settle = settle
        self._spans: dict[MemoryTag, list[Span]] = {}

    def allocate(self, nbytes: int, tag: MemoryTag) -> Tensor:
        """Allocate zeroed uint8 [nbytes] under a tag. Raises MemoryError."""
        unit = self._space.granularity
        size = -(-max(nbytes, 1) // unit) * unit
        address = self._space.reserve(size)
        try:
            handle = self._space.fill(address, size)
        except Exception:
            self._space.forget(address, size)
            raise
        memory = self._space.tensor(address, size)
        memory.zero_()
        span = Span(address, size, handle, memory)
        self._spans.setdefault(tag, []).append(span)
        return memory[:nbytes]

    def release(self, tag: MemoryTag) -> int:
        """Release the memory of all spans of a tag; returns the bytes released."""
        self._settle()
        released = 0
        for span in self._spans.get(tag, []):
            if span.handle is not None:
                self._space.empty(span.address, span.nbytes, span.handle)
                span.handle = None
                released += span.nbytes
        return released

    def restore(self, tag: MemoryTag) -> None:
        """Map zeroed memory to all spans of a tag again. Raises MemoryError, and then leaves all of them unmapped."""
        filled: list[Span] = []
        for span in self._spans.get(tag, []):
            if span.handle is not None:
                continue
            try:
                span.handle = self._space.fill(span.address, span.nbytes)
            except Exception:
                self._undo(filled)
                raise
            filled.append(span)
        for span in filled:
            span.memory.zero_()

    def close(self) -> None:
        """Release all memory and addresses; their tensors must no longer be used."""
        for tag in list(self._spans):
            self.release(tag)
            for span in self._spans.pop(tag):
                self._space.forget(span.address, span.nbytes)

    def _undo(self, filled: list[Span]) -> None:
        for span in filled:
            assert span.handle is not None
            self._space.empty(span.address, span.nbytes, span.handle)
            span.handle = None
