"""Memory that can be given up and taken again at the same addresses, by tag.

Owns: the spans of each tag, and whether memory lies behind them. Never does: know what the bytes mean.
Called by: the runtime.

The addresses of a span are reserved once; memory is put behind them and taken away. Tensors and recorded graphs hold
addresses, so they are good again when the memory is back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from core_runtime.contracts import MemoryTag


class AddressSpace(Protocol):
    """Addresses of a device, and memory behind them.

    granularity: bytes of which every span is a multiple.
    """

    granularity: int

    def reserve(self, nbytes: int) -> int:
        """Addresses without memory; returns the first."""
        ...

    def fill(self, address: int, nbytes: int) -> int:
        """Put memory behind a span. Returns its handle. Raises MemoryError when there is not enough."""
        ...

    def empty(self, address: int, nbytes: int, handle: int) -> None:
        """Give the memory behind a span back."""
        ...

    def forget(self, address: int, nbytes: int) -> None:
        """Give the addresses back."""
        ...

    def tensor(self, address: int, nbytes: int) -> Tensor:
        """uint8 [nbytes] at an address."""
        ...


@dataclass(slots=True)
class Span:
    """Neighbouring addresses.

    nbytes: a multiple of the granularity.
    handle: of the memory behind them; None while there is none.
    memory: uint8 [nbytes].
    """

    address: int
    nbytes: int
    handle: int | None
    memory: Tensor


class TaggedMemory:
    """The spans of a device. settle: waits until the device has done everything."""

    def __init__(self, space: AddressSpace, settle: Callable[[], None]) -> None:
        self._space = space
        self._settle = settle
        self._spans: dict[MemoryTag, list[Span]] = {}

    def allocate(self, nbytes: int, tag: MemoryTag) -> Tensor:
        """Zeroed uint8 [nbytes]. Raises MemoryError."""
        unit = self._space.granularity
        size = -(-max(nbytes, 1) // unit) * unit
        address = self._space.reserve(size)
        try:
            handle = self._space.fill(address, size)
        except MemoryError:
            self._space.forget(address, size)
            raise
        memory = self._space.tensor(address, size)
        memory.zero_()
        span = Span(address, size, handle, memory)
        self._spans.setdefault(tag, []).append(span)
        return memory[:nbytes]

    def release(self, tag: MemoryTag) -> int:
        """Take the memory away from all spans of a tag; returns its bytes."""
        self._settle()
        released = 0
        for span in self._spans.get(tag, []):
            if span.handle is not None:
                self._space.empty(span.address, span.nbytes, span.handle)
                span.handle = None
                released += span.nbytes
        return released

    def restore(self, tag: MemoryTag) -> None:
        """Put zeroed memory behind all spans of a tag again. Raises MemoryError, and has then taken none."""
        filled: list[Span] = []
        for span in self._spans.get(tag, []):
            if span.handle is not None:
                continue
            try:
                span.handle = self._space.fill(span.address, span.nbytes)
            except MemoryError:
                self._undo(filled)
                raise
            filled.append(span)
        for span in filled:
            span.memory.zero_()

    def close(self) -> None:
        """Give everything back; nobody may use it any more."""
        for tag in list(self._spans):
            self.release(tag)
            for span in self._spans.pop(tag):
                self._space.forget(span.address, span.nbytes)

    def _undo(self, filled: list[Span]) -> None:
        for span in filled:
            assert span.handle is not None
            self._space.empty(span.address, span.nbytes, span.handle)
            span.handle = None
