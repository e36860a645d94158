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
"""Bytes of an arena that are reserved at once; on a CPU, pages cost memory when they are touched."""


@dataclass(slots=True, eq=False)
class Chunk:
    """memory: uint8. used: bytes from its beginning that places were made of. num_places: of these in use."""

    memory: Tensor
    used: int = 0
    num_places: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of a chunk. size: with those up to the next place."""

    chunk: Chunk
    start: int
    nbytes: int
    size: int

    @property
    def memory(self) -> Tensor:
        """uint8 [nbytes]."""
        return self.chunk.memory[self.start : self.start + self.nbytes]


class Arena:
    """Memory for many weights, reserved in chunks; a chunk lives as long as a weight in it.

    A place that was given back is taken again for as many bytes: models that follow one another have parts of the same sizes.

    reserve: gives zeroed uint8 memory of so many bytes.
    count: is told of bytes that come into use, and of those that go as a negative number.
    """

    def __init__(self, reserve: Callable[[int], Tensor], count: Callable[[int], None]) -> None:
        self._reserve = reserve
        self._count = count
        self._newest: Chunk | None = None
        self._places: dict[int, Place] = {}
        self._free: dict[int, list[Place]] = {}
        self._only: set[Chunk] | None = None  # chunks that places are taken of, besides new ones; None: all

    def take(self, nbytes: int) -> Tensor:
        """Zeroed uint8 [nbytes] that nobody else has, at a multiple of `ALIGNMENT` from the beginning of a chunk."""
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        place = self._taken_again(nbytes, size) or self._new(nbytes, size)
        place.chunk.num_places += 1
        memory = place.memory
        self._places[memory.data_ptr()] = place
        self._count(nbytes)
        return memory

    def give_back(self, memory: Tensor) -> None:
        """Nobody uses what `take` gave any more."""
        place = self._places.pop(memory.data_ptr())
        self._count(-place.nbytes)
        chunk = place.chunk
        chunk.num_places -= 1
        if chunk.num_places:
            self._free.setdefault(place.size, []).append(place)
        else:
            self._drop(chunk)

    def stay_with(self, kept: Iterable[Tensor]) -> None:
        """All places but these will be given back: take none of chunks in which none of them lies, so that those can go."""
        self._only = {self._places[memory.data_ptr()].chunk for memory in kept}

    def end_stay(self) -> None:
        """Take places of all chunks again."""
        self._only = None

    def _is_open(self, chunk: Chunk) -> bool:
        return self._only is None or chunk in self._only

    def _taken_again(self, nbytes: int, size: int) -> Place | None:
        """A place of this size that was given back."""
        free = self._free.get(size, [])
        for index, before in enumerate(free):
            if self._is_open(before.chunk):
                del free[index]
                place = Place(before.chunk, before.start, nbytes, size)
                place.memory.zero_()
                return place
        return None

    def _new(self, nbytes: int, size: int) -> Place:
        """A place behind all others."""
        chunk = self._newest
        if chunk is None or not self._is_open(chunk) or chunk.used + size > len(chunk.memory):
            chunk = Chunk(self._reserve(max(size, CHUNK)))
            self._newest = chunk
            if self._only is not None:
                self._only.add(chunk)
        place = Place(chunk, chunk.used, nbytes, size)
        chunk.used += size
        return place

    def _drop(self, chunk: Chunk) -> None:
        """Forget a chunk that nothing lies in."""
        if self._newest is chunk:
            self._newest = None
        for size, places in list(self._free.items()):
            self._free[size] = [place for place in places if place.chunk is not chunk]
