"""The cache of processed media that the API processes of one server share (`--mm-processor-cache-type shm`).

Owns: the layout of its memory, and the lock. Never does: process an item. Called by: the pool of each API process; the
supervisor makes the memory, which only its children inherit: it has no name that others could open.

A file in memory holds a head, an index and a ring. Positions in the ring only grow: a record at position p lies at p modulo
the ring's size, and is there until the head has gone on by that size. A record is written before its entry in the index, and
the key of an entry last, so a process that dies while it writes leaves an entry that no key finds. Records are msgpack of
known fields: a record that cannot be read is a miss.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from core.api.errors import UNREADABLE
from core_media.processing.item_names import ItemName, digest_of_name
from core_media.processing.processed import Processed
from core_supervision.link.anonymous_file import anonymous_file

HEAD: Final = struct.Struct("<Q")
ENTRY: Final = struct.Struct("<32sQQ16x")
"""An entry of the index: key, position, length."""
WAYS: Final = 8
"""Entries in which a key may lie; the oldest one leaves for another key."""
NUM_ENTRIES: Final = 1 << 14
"""Entries of the index: 1 MiB, for items and ids."""
INDEX: Final = 64
RING: Final = INDEX + NUM_ENTRIES * ENTRY.size
LOCK_S: Final = 0.2
"""Seconds to wait for the lock. A process that was stopped while it held it makes misses of all calls, and no request hang."""
PAUSE_S: Final = 0.001
NO_KEY: Final = bytes(32)


def is_possible() -> bool:
    """Whether the system has such memory."""
    return sys.platform == "linux"


def shared_memory(num_bytes: int) -> int:
    """Return the descriptor of the memory of a cache whose ring has `num_bytes`; zeros take no memory. Raises OSError.

    Nobody can cut it, which would end a process that reads it.
    """
    descriptor = anonymous_file("core-processed-media", RING + num_bytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


class SharedCache:
    """One process's view of the cache. Thread-safe.

    descriptor: of the memory. most: bytes of the largest record that is kept.
    """

    waits = True

    def __init__(self, descriptor: int, most: int) -> None:
        # An opening of its own, since locks of the same one do not exclude each other.
        self._file = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        self._memory = mmap.mmap(self._file, 0)
        self._size = len(self._memory) - RING
        self._most = min(most, self._size)
        self._threads = threading.Lock()

    def get(self, key: bytes) -> Processed | None:
        """Return an item, if it is still kept."""
        record = self._read(key)
        try:
            return None if record is None else msgspec.msgpack.decode(record, type=Processed)
        except UNREADABLE:
            return None

    def put(self, key: bytes, made: Processed) -> None:
        """Keep an item; the oldest ones leave. One larger than the limit is not kept."""
        self._write(key, msgspec.msgpack.encode(made))

    def named(self, name: ItemName) -> Processed | None:
        """Return the item that an id stands for, whichever process it was sent to first."""
        key = self._read(digest_of_name(name))
        return None if key is None or len(key) != len(NO_KEY) else self.get(key)

    def name(self, name: ItemName, key: bytes) -> None:
        """Let an id stand for an item."""
        self._write(digest_of_name(name), key, replaces=True)

    def clear(self) -> None:
        """Drop all items and ids, for all processes."""
        with self._locked() as is_locked:
            if is_locked:
                self._go_on(self._size + 1)

    def close(self) -> None:
        """Give this view back; the memory stays as long as another process has it."""
        with self._threads:
            self._memory.close()
            os.close(self._file)

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Exclude all other users; yields whether that was possible in time."""
        end = time.monotonic() + LOCK_S
        with self._threads:
            is_locked = self._lock()
            while not is_locked and time.monotonic() < end:
                time.sleep(PAUSE_S)
                is_locked = self._lock()
            try:
                yield is_locked
            finally:
                if is_locked:
                    fcntl.flock(self._file, fcntl.LOCK_UN)

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _read(self, key: bytes) -> bytes | None:
        with self._locked() as is_locked:
            place = self._find(key) if is_locked else None
            if place is None:
                return None
            _, position, length = self._entry(place)
            start = RING + position % self._size
            return self._memory[start : start + length]

    def _write(self, key: bytes, record: bytes, *, replaces: bool = False) -> None:
        """Write a record, unless there is one of this key. replaces: write it even so."""
        if len(record) > self._most:
            return
        with self._locked() as is_locked:
            if not is_locked:
                return
            place = self._find(key)
            if place is not None and not replaces:
                return
            position = self._head
            if position % self._size + len(record) > self._size:  # a record lies in one piece
                position += self._size - position % self._size
            self._go_on(position + len(record) - self._head)
            start = RING + position % self._size
            self._memory[start : start + len(record)] = record
            entry = self._oldest(key) if place is None else place
            ENTRY.pack_into(self._memory, entry, NO_KEY, position, len(record))
            self._memory[entry : entry + len(key)] = key

    @property
    def _head(self) -> int:
        return int(HEAD.unpack_from(self._memory, 0)[0])

    def _go_on(self, count: int) -> None:
        """Move the head. What it passes, and what lies there, is no record any more."""
        HEAD.pack_into(self._memory, 0, self._head + count)

    def _entry(self, place: int) -> tuple[bytes, int, int]:
        key, position, length = ENTRY.unpack_from(self._memory, place)
        return key, position, length

    def _places(self, key: bytes) -> range:
        """Return where the entries lie of which one may have this key."""
        first = int.from_bytes(key[:4], "little") % (NUM_ENTRIES // WAYS) * WAYS
        return range(INDEX + first * ENTRY.size, INDEX + (first + WAYS) * ENTRY.size, ENTRY.size)

    def _find(self, key: bytes) -> int | None:
        """Return where the entry of a key lies, if its record is still there."""
        for place in self._places(key):
            found, position, length = self._entry(place)
            if found == key and self._is_whole(position, length):
                return place
        return None

    def _is_whole(self, position: int, length: int) -> bool:
        """Whether a record lies within the ring, and nothing has been written over it."""
        inside = 0 < length <= self._size - position % self._size
        return inside and position + length <= self._head <= position + self._size

    def _oldest(self, key: bytes) -> int:
        """Return where the entry lies that leaves for this key."""
        return min(
            self._places(key), key=lambda place: self._entry(place)[1] if self._entry(place)[0] != NO_KEY else -1
        )
