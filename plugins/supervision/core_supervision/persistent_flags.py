"""Storage of an engine's state in memory that the next engine inherits.

Owns: `PersistentRecord`, the format of a record; `PersistentFlags`, the record of an engine's state. Never does: interpret a
record. Called by: the engine process (reads at its start), the state keeper (writes each change), observers with a record of
their own.

A record has two places in the file, written alternately, so that an engine that dies while it writes leaves the previous one.
"""

from __future__ import annotations

import os
import struct
from typing import Generic, TypeVar

import msgspec
import xxhash

from core.api.errors import UNREADABLE
from core_supervision.engine_state import EngineState
from core_supervision.link.sparse_file import write_at

T = TypeVar("T", bound=msgspec.Struct)

PLACE_BYTES = 1 << 30
"""Size of one of the two places; the file is sparse, so they only take the memory that is written."""

HEADER = struct.Struct("=QQ16s")
"""Header of a record: its number, its length and its checksum."""


class PersistentRecord(Generic[T]):
    """A record in a file.

    descriptor: descriptor of the file; None: nothing outlives this engine.
    kind:       type of the record.
    offset:     start of its two places; other records of the file lie elsewhere.
    """

    def __init__(self, descriptor: int | None, kind: type[T], offset: int = 0) -> None:
        self._descriptor = descriptor
        self._kind = kind
        self._places = (offset, offset + PLACE_BYTES)
        self._number: int | None = None

    def write(self, record: T) -> None:
        """Store a record, completely or not at all. Raises OSError when there is no memory for it."""
        if self._descriptor is None:
            return
        if self._number is None:
            before = self._newest(self._descriptor)
            self._number = 0 if before is None else before[0]
        number = self._number + 1
        raw = msgspec.msgpack.encode(record)
        place = self._places[number % 2]
        write_at(self._descriptor, raw, place + HEADER.size)
        # The header last: until its checksum fits, the previous record counts.
        write_at(self._descriptor, HEADER.pack(number, len(raw), xxhash.xxh3_128_digest(raw)), place)
        self._number = number

    def read(self) -> T | None:
        """Return the newest complete record; None when no engine has left one."""
        newest = None if self._descriptor is None else self._newest(self._descriptor)
        return None if newest is None else newest[1]

    def _newest(self, descriptor: int) -> tuple[int, T] | None:
        """Return the complete record with the highest number, and that number."""
        whole: list[tuple[int, T]] = []
        for place in self._places:
            header = os.pread(descriptor, HEADER.size, place)
            if len(header) < HEADER.size:
                continue
            number, length, checksum = HEADER.unpack(header)
            if not 0 < length < PLACE_BYTES:
                continue
            raw = os.pread(descriptor, length, place + HEADER.size)
            if xxhash.xxh3_128_digest(raw) != checksum:
                continue
            try:
                whole.append((number, msgspec.msgpack.decode(raw, type=self._kind)))
            except UNREADABLE:
                continue
        return max(whole, key=lambda entry: entry[0], default=None)


class PersistentFlags(PersistentRecord[EngineState]):
    """The record of an engine's state. descriptor: descriptor of the file; None: no state outlives this engine."""

    def __init__(self, descriptor: int | None) -> None:
        super().__init__(descriptor, EngineState)


def read(descriptor: int | None) -> EngineState | None:
    """Return the newest complete state; None when no engine has left one."""
    return PersistentFlags(descriptor).read()
