"""Memory that prepared weights lie in.

Owns: the chunks of one model, or of models that follow one another, and the places in them. Never does: know what lies in a
place, or free a chunk that anything lives in. Called by: the device (makes one), the store of a model's parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from torch import Tensor

ALIGNMENT: Final = 4096
CHUNK: Final = 64 << 20
"""Bytes reserved at a time on a CPU, where pages cost memory only when they are touched: what a chunk has left is free."""
DEVICE_CHUNK: Final = 2 << 20
"""The same on a device, where all of a chunk costs memory: the least that a driver maps. Larger weights have their own."""
HOST_CHUNK: Final = 256 << 20
"""The same in pinned memory of the host, whose allocations torch rounds up to a power of two."""


@dataclass(slots=True, eq=False)
class Chunk:
    """One reservation of an arena, and its places.

    memory: uint8.
    used: bytes from the start that have been divided into places.
    num_places: places that are in use.
    """

    memory: Tensor
    used: int = 0
    num_places: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """A range of bytes in a chunk. size: `nbytes` plus the padding up to the next place."""

    chunk: Chunk
    start: int
    nbytes: int
    size: int

    @property
    def memory(self) -> Tensor:
        """The place's bytes, uint8 [nbytes]."""
        return self.chunk.memory[self.start : self.start + self.nbytes]


class Arena:
    """Memory for many weights, reserved in chunks. A chunk lives as long as any weight in it.

    A released place is reused for a request of the same size: models that follow one another have parts of the same
    sizes.

    reserve: return that many bytes of zeroed uint8 memory.
    count: callback with the bytes that come into use; negative when they are released.
    chunk: bytes reserved at a time; more for a larger weight.
    """

    def __init__(self, reserve: Callable[[int], Tensor], count: Callable[[int], None], chunk: int = CHUNK) -> None:
        self._reserve = reserve
        self._count = count
        self._chunk = chunk
        self._newest: Chunk | None = None
        self._places: dict[int, Place] = {}
        self._free: dict[int, list[Place]] = {}
        self._only: set[Chunk] | None = None  # existing chunks that may supply places; None: all

    def take(self, nbytes: int) -> Tensor:
        """Return zeroed, unshared memory, uint8 [nbytes], aligned to `ALIGNMENT` from the start of a chunk."""
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        place = self._taken_again(nbytes, size) or self._new(nbytes, size)
        place.chunk.num_places += 1
        memory = place.memory
        # A tensor has no field for its place; its address is unique among the places in use.
        self._places[memory.data_ptr()] = place
        self._count(nbytes)
        return memory

    def give_back(self, memory: Tensor) -> None:
        """Release memory that `take` returned; the caller must not use it afterwards."""
        place = self._places.pop(memory.data_ptr())
        self._count(-place.nbytes)
        chunk = place.chunk
        chunk.num_places -= 1
        if chunk.num_places:
            self._free.setdefault(place.size, []).append(place)
        else:
            # The arena's last reference to the chunk goes, so its memory is freed.
            self._drop(chunk)

    def stay_with(self, kept: Iterable[Tensor]) -> None:
        """Restrict reuse to the chunks of `kept`, because all other places will be released and their chunks can then
        be freed.
        """
        self._only = {self._places[memory.data_ptr()].chunk for memory in kept}

    def end_stay(self) -> None:
        """Allow reuse of places in all chunks again."""
        self._only = None

    def _is_open(self, chunk: Chunk) -> bool:
        return self._only is None or chunk in self._only

    def _taken_again(self, nbytes: int, size: int) -> Place | None:
        """Return a released place of the same size, zeroed, or None."""
        free = self._free.get(size, [])
        for index, before in enumerate(free):
            if self._is_open(before.chunk):
                del free[index]
                place = Place(before.chunk, before.start, nbytes, size)
                place.memory.zero_()
                return place
        return None

    def _new(self, nbytes: int, size: int) -> Place:
        """Return a place after all others in the newest chunk, or in a new chunk."""
        chunk = self._newest
        if chunk is None or not self._is_open(chunk) or chunk.used + size > len(chunk.memory):
            chunk = Chunk(self._reserve(max(size, self._chunk)))
            self._newest = chunk
            if self._only is not None:
                self._only.add(chunk)
        place = Place(chunk, chunk.used, nbytes, size)
        chunk.used += size
        return place

    def _drop(self, chunk: Chunk) -> None:
        """Forget an empty chunk and its released places."""
        if self._newest is chunk:
            self._newest = None
        for size, places in list(self._free.items()):
            self._free[size] = [place for place in places if place.chunk is not chunk]
