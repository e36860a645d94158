"""What an engine leaves to the one that follows it: the sources of its weights, and whether it sleeps or pauses.

Owns: `Lasting`, and its form in a file in memory that both inherit. Never does: decide what follows from it. Called by: the
engine process (reads at its start), the lifecycle (writes after each change).

The file has two places, written in turn, so that an engine that dies while it writes leaves the record before.
"""

from __future__ import annotations

import os
import struct

import msgspec
import xxhash

from core.api.decoding import UNREADABLE
from core.api.weights import MemoryPart, WeightsState

PLACE_BYTES = 1 << 30
"""Of one of the two places; they take as much memory as is written."""

HEADER = struct.Struct("=QQ16s")
"""The number of the record, its length and its checksum."""


class Lasting(msgspec.Struct, frozen=True, kw_only=True):
    """weights: what they are made of. sleep_level: 0 while awake. missing: parts of the memory that were given back.

    halted_by: why nothing is computed: `pause`, `sleep`.
    """

    weights: WeightsState = WeightsState()
    sleep_level: int = 0
    missing: tuple[MemoryPart, ...] = ()
    halted_by: tuple[str, ...] = ()


def read(descriptor: int | None) -> Lasting:
    """The newest whole record; that of an engine which nothing has happened to where there is none."""
    found = _newest(descriptor)
    return Lasting() if found is None else found[1]


def write(descriptor: int | None, record: Lasting) -> None:
    """Leave a record. Raises OSError when there is no memory for it."""
    if descriptor is None:
        return
    before = _newest(descriptor)
    number = 1 if before is None else before[0] + 1
    raw = msgspec.msgpack.encode(record)
    place = number % 2 * PLACE_BYTES
    os.pwrite(descriptor, raw, place + HEADER.size)
    os.pwrite(descriptor, HEADER.pack(number, len(raw), xxhash.xxh3_128_digest(raw)), place)


def _newest(descriptor: int | None) -> tuple[int, Lasting] | None:
    """The record with the higher number, and that number."""
    if descriptor is None:
        return None
    found: list[tuple[int, Lasting]] = []
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
            found.append((number, msgspec.msgpack.decode(raw, type=Lasting)))
        except UNREADABLE:
            continue
    return max(found, key=lambda entry: entry[0], default=None)
