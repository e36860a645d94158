"""Storage of an engine's state in memory that the next engine inherits.

Owns: `PersistentFlags`, the format of that record. Never does: interpret it. Called by: the engine process (reads at its
start), the state keeper (writes each change).

The file has two places, written alternately, so that an engine that dies while it writes leaves the previous record.
"""

from __future__ import annotations

import os
import struct

import msgspec
import xxhash

from core.api.errors import UNREADABLE
from core_supervision.engine_state import EngineState

PLACE_BYTES = 1 << 30
"""Size of one of the two places; the file is sparse, so they only take the memory that is written."""

HEADER = struct.Struct("=QQ16s")
"""Header of a record: its number, its length and its checksum."""


class PersistentFlags:
    """The file of one engine. descriptor: descriptor of the file; None: no state outlives this engine."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._number: int | None = None

    def write(self, state: EngineState) -> None:
        """Store a record, completely or not at all. Raises OSError when there is no memory for it."""
        if self._descriptor is None:
            return
        if self._number is None:
            before = _newest(self._descriptor)
            self._number = 0 if before is None else before[0]
        number = self._number + 1
        raw = msgspec.msgpack.encode(state)
        place = number % 2 * PLACE_BYTES
        _write_all(self._descriptor, raw, place + HEADER.size)
        # The header last: until its checksum fits, the previous record counts.
        _write_all(self._descriptor, HEADER.pack(number, len(raw), xxhash.xxh3_128_digest(raw)), place)
        self._number = number


def read(descriptor: int | None) -> EngineState | None:
    """Return the newest complete record; None when no engine has left one."""
    newest = None if descriptor is None else _newest(descriptor)
    return None if newest is None else newest[1]


def _write_all(descriptor: int, raw: bytes, offset: int) -> None:
    view = memoryview(raw)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view = view[count:]
        offset += count


def _newest(descriptor: int) -> tuple[int, EngineState] | None:
    """Return the complete record with the highest number, and that number."""
    whole: list[tuple[int, EngineState]] = []
    for place in (0, PLACE_BYTES):
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
            whole.append((number, msgspec.msgpack.decode(raw, type=EngineState)))
        except UNREADABLE:
            continue
    return max(whole, key=lambda entry: entry[0], default=None)
