"""An adapter that came from memory, as it lies in the file of its engine.

Owns: `SentAdapter`, what a client sends; `SentHeader`, `SentPlace`: the form in the file, and the path that names it.
Never does: know a tensor's meaning. Called by: the engine's store of sent adapters (writes), peft's format (reads).

The bytes from the place on: the length of the header (8 bytes, little-endian), the header (msgpack), and from the next multiple
of `ALIGNMENT` on the tensors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Annotated, Final, Self

import msgspec

from core.api.errors import UNREADABLE, CheckpointError, UserError
from core.api.weights import MOST_TENSORS, TensorPlace

ALIGNMENT: Final = 64
LENGTH_BYTES: Final = 8
LONGEST_CONFIGURATION: Final = 1 << 20
PATH: Final = re.compile(r"sent:(\d{1,19})\+(\d{1,19})(?:@(\d{1,9}))?")

ITEM_BYTES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of an element of each type that an adapter may have, by its name in safetensors."""
NAMES: Final = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Torch's names of these types."""


class SentAdapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter in shared memory, as a client describes it.

    configuration: what `adapter_config.json` would hold.
    shared_memory: name of POSIX shared memory (a file of /dev/shm).
    tensors:       tensors in it, by the names that `adapter_model.safetensors` would give them.
    """

    configuration: Annotated[str, msgspec.Meta(max_length=LONGEST_CONFIGURATION)]
    shared_memory: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    tensors: Annotated[list[TensorPlace], msgspec.Meta(max_length=MOST_TENSORS)]


class SentTensor(msgspec.Struct, frozen=True, array_like=True):
    """One tensor. dtype: its name in safetensors. offset, nbytes: where its bytes lie, in the memory or after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SentHeader(msgspec.Struct, frozen=True):
    """What precedes the tensors in the file. configuration: JSON."""

    configuration: str
    tensors: tuple[SentTensor, ...]

    def encoded(self) -> bytes:
        """Return the header with its length, padded so that tensors may follow."""
        raw = msgspec.msgpack.encode(self)
        start = LENGTH_BYTES + len(raw)
        return len(raw).to_bytes(LENGTH_BYTES, "little") + raw + bytes(-start % ALIGNMENT)


class SentPlace(msgspec.Struct, frozen=True):
    """A place in a file. file: its descriptor in this process; None: another process has it, as in records."""

    offset: int
    nbytes: int
    file: int | None = None

    @classmethod
    def of(cls, path: str) -> Self | None:
        """Return the place that a path names; None for a path of the file system, which never begins like this."""
        match = PATH.fullmatch(path)
        if match is None:
            return None
        offset, nbytes, file = match.groups()
        return cls(int(offset), int(nbytes), None if file is None else int(file))

    @property
    def path(self) -> str:
        """The path by which records and executors name the place."""
        return f"sent:{self.offset}+{self.nbytes}" + ("" if self.file is None else f"@{self.file}")

    def header(self) -> tuple[SentHeader, int]:
        """Return the header, and the place of the tensors in the file. Raises CheckpointError."""
        assert self.file is not None, "only a place of this process is read"
        length = int.from_bytes(os.pread(self.file, LENGTH_BYTES, self.offset), "little")
        start = LENGTH_BYTES + length
        try:
            if start > self.nbytes:
                raise ValueError(f"its header has {length} bytes")
            raw = os.pread(self.file, length, self.offset + LENGTH_BYTES)
            return msgspec.msgpack.decode(raw, type=SentHeader), self.offset + start + -start % ALIGNMENT
        except (*UNREADABLE, ValueError) as error:
            raise CheckpointError(
                f"The adapter that was sent is damaged in memory ({error}); send it again."
            ) from error


def checked_tensors(sent: SentAdapter, nbytes: int) -> Iterator[SentTensor]:
    """Yield the tensors that a client describes, with their sizes. nbytes: of the shared memory. Raises UserError.

    Together they are no larger than the memory, so that a description cannot make the engine copy more than was sent.
    """
    ref = f"shared memory {sent.shared_memory}"
    names: set[str] = set()
    total = 0
    for place in sent.tensors:
        dtype = NAMES.get(place.dtype, place.dtype)
        if dtype not in ITEM_BYTES:
            known = ", ".join(ITEM_BYTES)
            raise UserError(f"{ref}: tensor '{place.name}' has type {place.dtype}, expected one of {known}.")
        if place.name in names:
            raise UserError(f"{ref}: tensor '{place.name}' is named twice.")
        names.add(place.name)
        size = ITEM_BYTES[dtype]
        for length in place.shape:
            size = min(size * length, 1 << 62)  # eight dimensions of 2 ** 50 would otherwise make large integers
        if place.offset + size > nbytes:
            raise UserError(f"{ref}: tensor '{place.name}' ends at byte {place.offset + size} of {nbytes}.")
        total += size
        if total > nbytes:
            raise UserError(f"{ref}: the tensors overlap, since they have more than its {nbytes} bytes together.")
        yield SentTensor(place.name, dtype, tuple(place.shape), place.offset, size)
