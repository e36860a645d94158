"""The file in memory that the blocks of a KV cache lie in, with a record of each cached block.

Owns: the layout of the file, its records, checksums of blocks. Never does: create the file (the engine's owner does), write a
block, or decide what is kept. Called by: the KV memory (`lay_out`), the connector `keep`.

The file is a header (length, `Layout`), the fingerprint of the values, a record for each block, and the buffers of the KV
memory. A record carries a checksum of itself: an engine may be killed while it writes one.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import msgspec
import numpy as np
import xxhash

from core.api.errors import UNREADABLE, ConfigError

MAGIC = "core-kept-kv-2"
HEADER_BYTES = 1 << 14
PRINT_START = HEADER_BYTES
PRINT_BYTES = 32
RECORDS_START = HEADER_BYTES + (1 << 12)
PAGE = 1 << 12
HEAD = struct.Struct("<QQI")
"""Of a record: checksum of its encoded `Record` and the fingerprint, when its block was last used, length of the former."""
USED = struct.Struct("<Q")
OTHER_BYTES = 192
"""Limit on the bytes of a record besides token ids; a block with a larger key, such as one of many images, is not kept."""


class Layout(msgspec.Struct, array_like=True, frozen=True):
    """Sizes that all engines on the file must agree on. block_sizes: bytes of a block in each buffer."""

    num_blocks: int
    block_sizes: tuple[int, ...]
    record_bytes: int
    magic: str = MAGIC

    @property
    def starts(self) -> list[int]:
        """Return where each buffer begins."""
        starts: list[int] = []
        end = RECORDS_START + self.num_blocks * self.record_bytes
        for size in self.block_sizes:
            starts.append(-(-end // PAGE) * PAGE)
            end = starts[-1] + self.num_blocks * size
        return starts

    @property
    def nbytes(self) -> int:
        """Return the size of the file."""
        return self.starts[-1] + self.num_blocks * self.block_sizes[-1]


class Record(msgspec.Struct, array_like=True, frozen=True):
    """A cached block. number: place in the order of caching. parent: digest of the block before it. checksum: of its bytes."""

    number: int
    group: int
    digest: bytes
    payload: bytes
    parent: bytes | None
    checksum: bytes


class KeptRecord(NamedTuple):
    """The record of a block, and when the block was last used."""

    used: int
    block_id: int
    record: Record


def lay_out(descriptor: int, num_blocks: int, block_sizes: Sequence[int], block_size: int) -> Layout:
    """Give a file its layout, and empty it unless it has this layout already. block_size: tokens. Raises OSError."""
    record_bytes = -(-(HEAD.size + OTHER_BYTES + 4 * block_size) // 64) * 64
    layout = Layout(num_blocks, tuple(block_sizes), record_bytes)
    if _read_layout(descriptor) != layout:
        encoded = msgspec.msgpack.encode(layout)
        os.ftruncate(descriptor, 0)
        os.ftruncate(descriptor, layout.nbytes)
        os.pwrite(descriptor, len(encoded).to_bytes(4, "little") + encoded, 0)
    return layout


class KeptFile:
    """A file with a layout, mapped into this process."""

    def __init__(self, descriptor: int, layout: Layout) -> None:
        self.layout = layout
        self._starts = layout.starts
        self._memory = mmap.mmap(descriptor, layout.nbytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # on a kernel without huge pages, small ones do
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._view = memoryview(self._memory)

    @classmethod
    def open(cls, descriptor: int) -> Self:
        """Map a file that the KV memory has laid out. Raises OSError, and ConfigError for any other file."""
        layout = _read_layout(descriptor)
        if layout is None:
            raise ConfigError(["--keep-kv: this executor has its KV cache elsewhere; leave it out."])
        return cls(descriptor, layout)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the values that the records are about."""
        return bytes(self._view[PRINT_START : PRINT_START + PRINT_BYTES]).decode("ascii", "replace")

    def begin(self, fingerprint: str) -> None:
        """Drop all records; those written from now on are about values of this fingerprint."""
        for block_id in self._blocks_with_records():
            self.erase(block_id)
        self._view[PRINT_START : PRINT_START + PRINT_BYTES] = fingerprint.encode()

    def checksum(self, block_id: int) -> bytes:
        """Return the checksum of a block's bytes, in all buffers (XXH3, 128 bits): that of its page."""
        digest = xxhash.xxh3_128()
        for start, size in zip(self._starts, self.layout.block_sizes, strict=True):
            begin = start + block_id * size
            digest.update(self._view[begin : begin + size])
        return digest.digest()

    def write(self, block_id: int, record: Record, used: int) -> bool:
        """Write the record of a block; False when it is too large."""
        encoded = msgspec.msgpack.encode(record)
        if HEAD.size + len(encoded) > self.layout.record_bytes:
            return False
        start = self._start(block_id)
        body = start + HEAD.size
        self._view[body : body + len(encoded)] = encoded
        HEAD.pack_into(self._view, start, self._check(block_id, encoded), used, len(encoded))
        return True

    def erase(self, block_id: int) -> None:
        """Drop the record of a block."""
        HEAD.pack_into(self._view, self._start(block_id), 0, 0, 0)

    def touch(self, block_id: int, used: int) -> None:
        """Note when a block was last used."""
        USED.pack_into(self._view, self._start(block_id) + USED.size, used)

    def records(self) -> Iterator[KeptRecord]:
        """Yield the records; one that is not whole is dropped."""
        for block_id in self._blocks_with_records():
            start = self._start(block_id)
            check, used, length = HEAD.unpack_from(self._view, start)
            body = start + HEAD.size
            # No more than a record is copied: a damaged length may be 4 GB.
            encoded = bytes(self._view[body : min(body + length, start + self.layout.record_bytes)])
            if length != len(encoded) or check != self._check(block_id, encoded):
                self.erase(block_id)
                continue
            yield KeptRecord(used, block_id, msgspec.msgpack.decode(encoded, type=Record))

    def _blocks_with_records(self) -> list[int]:
        size = self.layout.record_bytes
        lengths = np.ndarray(
            self.layout.num_blocks, "<u4", self._memory, RECORDS_START + 2 * USED.size, strides=(size,)
        )
        return [int(block_id) for block_id in np.flatnonzero(lengths)]

    def _start(self, block_id: int) -> int:
        return RECORDS_START + block_id * self.layout.record_bytes

    def _check(self, block_id: int, encoded: bytes) -> int:
        """Return the checksum of a record, which binds it to its block and to the fingerprint of the values."""
        return xxhash.xxh3_64_intdigest(
            bytes(self._view[PRINT_START : PRINT_START + PRINT_BYTES]) + encoded, seed=block_id
        )


def _read_layout(descriptor: int) -> Layout | None:
    """Return the layout of a file; None for one that has none, or another size than it says."""
    head = os.pread(descriptor, HEADER_BYTES, 0)
    length = int.from_bytes(head[:4], "little")
    try:
        layout = msgspec.msgpack.decode(head[4 : 4 + length], type=Layout)
    except UNREADABLE:
        return None
    is_ours = layout.magic == MAGIC and os.fstat(descriptor).st_size == layout.nbytes
    return layout if is_ours else None
