"""Memory for pages that several processes see.

Owns: `SharedPages`, a file in memory with places for one page each, and which of them are free; `PagePart`, another process's
view of its part of each page; `PlacedTransfers`, the copies of a step with the places of their pages. Never does: copy a block,
or choose pages. Called by: executors whose workers are other processes, the wire of plans, the KV memory.

A plan for another process names the places of pages; their bytes are read and written where they lie. A place is free again
once no array lies in it, so whoever keeps a page keeps its place, and nobody has to count.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.api.kv_transfer import KVTransfers, Page

ALIGNMENT: Final = mmap.PAGESIZE
CHUNK_BYTES: Final = 64 << 20
"""Bytes that the file grows by, and that are mapped at once."""
MAX_IDLE_BYTES: Final = 256 << 20
"""Limit on the memory of free places; that of further ones is returned to the system."""


@dataclass(slots=True)
class PlacedTransfers(KVTransfers):
    """Copies whose pages have places. into: memory for the pages of `saves`, in their order."""

    into: list[Page]

    def part(self, begin: int, end: int) -> PlacedTransfers:
        """Return the same copies of the bytes from `begin` to `end` of each page."""
        loads = [(block_id, page[begin:end]) for block_id, page in self.loads]
        return PlacedTransfers(self.number, self.saves, loads, [page[begin:end] for page in self.into])


class Place:
    """What an array in shared memory refers to; its end frees the place. number: of the place."""

    __slots__ = ("__array_interface__", "_pages", "number")

    def __init__(self, pages: SharedPages, number: int, interface: dict[str, Any]) -> None:
        self._pages = pages
        self.number = number
        self.__array_interface__ = interface

    def __del__(self) -> None:
        """Free the place. Called in any thread, also by the garbage collector, so it takes no lock."""
        self._pages._free_place(self.number)


class Chunk(NamedTuple):
    """A mapped part of the file: its memory, the same as an array, and its address."""

    memory: mmap.mmap
    everything: NDArray[np.uint8]
    address: int


class _Chunks:
    """The mapped parts of a file of pages. descriptor: stays the caller's, and open."""

    def __init__(self, descriptor: int, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.place_bytes = -(-page_bytes // ALIGNMENT) * ALIGNMENT
        self._descriptor = descriptor
        self._places_a_chunk = max(CHUNK_BYTES // self.place_bytes, 1)
        self._chunk_bytes = self._places_a_chunk * self.place_bytes
        self._mapped: dict[int, Chunk] = {}

    def find(self, number: int) -> tuple[Chunk, int]:
        """Return the chunk with a place, and where the place begins in it. Raises ValueError for no place."""
        index, place = divmod(number, self._places_a_chunk)
        found = self._mapped.get(index)
        if found is None:
            end = (index + 1) * self._chunk_bytes
            if number < 0 or end > os.fstat(self._descriptor).st_size:
                raise ValueError(f"there is no place {number} for a page")
            memory = mmap.mmap(self._descriptor, self._chunk_bytes, offset=index * self._chunk_bytes)
            everything = np.frombuffer(memory, np.uint8)
            found = self._mapped[index] = Chunk(memory, everything, everything.ctypes.data)
        return found, place * self.place_bytes

    def grow(self, num_places: int) -> None:
        """Let the file have so many places. Raises OSError."""
        size = -(-num_places // self._places_a_chunk) * self._chunk_bytes
        if os.fstat(self._descriptor).st_size < size:
            os.ftruncate(self._descriptor, size)


class SharedPages:
    """Places for pages of `page_bytes` bytes in a file, which grows as pages are kept; its memory is that of the pages.

    descriptor: of an empty file in memory; stays the caller's, and open.
    """

    def __init__(self, descriptor: int, page_bytes: int) -> None:
        self._chunks = _Chunks(descriptor, page_bytes)
        self._growing = threading.Lock()
        self._free: deque[int] = deque()
        self.num_places = 0

    @property
    def num_used(self) -> int:
        """Number of places with a page."""
        return self.num_places - len(self._free)

    def take(self) -> Page:
        """Return memory of a page, with any content. May be called from any thread. Raises OSError."""
        try:
            number = self._free.pop()
        except IndexError:
            number = self._new_place()
        chunk, begin = self._chunks.find(number)
        shape = (self._chunks.page_bytes,)
        interface = {"data": (chunk.address + begin, False), "shape": shape, "typestr": "|u1", "version": 3}
        return np.asarray(Place(self, number, interface))

    def placed(self, transfers: KVTransfers) -> PlacedTransfers:
        """Give the saved pages of a step places, and the loaded ones that have none, such as those of a plugin."""
        loads = [(block_id, page if self._has(page) else self._copy(page)) for block_id, page in transfers.loads]
        return PlacedTransfers(transfers.number, transfers.saves, loads, [self.take() for _ in transfers.saves])

    def _has(self, page: Page) -> bool:
        place = page.base
        return isinstance(place, Place) and place._pages is self and page.nbytes == self._chunks.page_bytes

    def _copy(self, page: Page) -> Page:
        copy = self.take()
        copy[:] = page
        return copy

    def _new_place(self) -> int:
        with self._growing:
            self._chunks.grow(self.num_places + 1)
            self._chunks.find(self.num_places)  # mapped under the lock
            self.num_places += 1
            return self.num_places - 1

    def _free_place(self, number: int) -> None:
        if len(self._free) * self._chunks.place_bytes < MAX_IDLE_BYTES or not hasattr(mmap, "MADV_REMOVE"):
            self._free.append(number)
            return
        chunk, begin = self._chunks.find(number)
        chunk.memory.madvise(mmap.MADV_REMOVE, begin, self._chunks.place_bytes)
        self._free.appendleft(number)  # taken last: it has no memory


class PagePart:
    """The bytes from `begin` to `end` of each page, in a process that others tell the places.

    descriptor: of the file of `SharedPages`; stays the caller's, and open.
    """

    def __init__(self, descriptor: int, page_bytes: int, begin: int, end: int) -> None:
        self._chunks = _Chunks(descriptor, page_bytes)
        self._begin = begin
        self._end = end

    def at(self, number: int) -> Page:
        """Return the part of the page in a place. Raises ValueError for no place."""
        chunk, begin = self._chunks.find(number)
        return chunk.everything[begin + self._begin : begin + self._end]


def place_of(page: Page) -> int:
    """Return the number of the place that a page lies in. Raises ValueError for any other memory."""
    place = page.base
    if not isinstance(place, Place):
        raise ValueError("a page lies in memory of this process alone")
    return place.number


def places_of(pages: Sequence[Page]) -> list[int]:
    """Return the numbers of the places of pages; see `place_of`."""
    return [place_of(page) for page in pages]
