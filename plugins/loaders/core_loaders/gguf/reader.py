"""A reader of GGUF headers (versions 2 and 3, little-endian): metadata and tensor table, no weights.

Owns: the file format. Never does: trust a length or an offset; every one is checked against the file's size, so a damaged
file ends in a CheckpointError. Called by: the GGUF loader. Format: the GGUF specification of the ggml project.
"""

from __future__ import annotations

import math
import mmap
import struct
from typing import Any, NamedTuple, NoReturn

import numpy as np

from core.api.errors import CheckpointError
from core_loaders.gguf.types import BLOCK_TYPES, BlockType

MAGIC = b"GGUF"
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 65_535
MAX_ALIGNMENT = 1 << 20
MAX_HEADER_BYTES = 256 << 20
"""Limit on the bytes before the weights; those of the largest vocabularies take 20 MB."""
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_ITEMS = 1 << 24
"""Limit on the items of all metadata lists together; each takes up to 60 bytes of memory."""
STRING = 8
ARRAY = 9
UINT32 = 4
UINT64 = 10
MIN_KEY_BYTES = 13
"""Size of the shortest metadata entry: length of the name, type, one byte of value."""
MIN_ROW_BYTES = 24
"""Size of the shortest entry in the tensor table: length of the name, number of dimensions, type, offset."""
SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}


class GGUFTensor(NamedTuple):
    """A tensor's entry in the table of a header.

    name: as in the file.
    shape: outermost first, (N, K) for a matrix.
    type: of its blocks.
    offset: bytes from the file's start.
    nbytes: bytes in the file.
    """

    name: str
    shape: tuple[int, ...]
    type: BlockType
    offset: int
    nbytes: int


class GGUFHeader(NamedTuple):
    """The header of a file: everything before the weights.

    metadata: scalars, strings and lists by key.
    tensors: in the file's order.
    """

    metadata: dict[str, Any]
    tensors: list[GGUFTensor]


def open_map(path: str) -> mmap.mmap:
    """Map the file copy-on-write. Raises CheckpointError when it cannot be read or is empty."""
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except ValueError:
        raise CheckpointError(f"{path}: the file is empty; expected a GGUF file. Download it again.") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); expected a GGUF file.") from None


def read_header(path: str) -> GGUFHeader:
    """Parse the header of the file. Raises CheckpointError that names the file and what is wrong."""
    data = open_map(path)
    try:
        return _Cursor(path, data).header()
    finally:
        data.close()


def read_architecture(path: str) -> str:
    """Return the value of `general.architecture`, which usually comes first. Raises CheckpointError."""
    data = open_map(path)
    try:
        return str(_Cursor(path, data).header(only="general.architecture").metadata.get("general.architecture"))
    finally:
        data.close()


class _Cursor:
    """A position in the mapped file; every read is bounds-checked."""

    def __init__(self, path: str, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.at = 0
        self.num_items = 0

    def fail(self, problem: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: {problem}. The file is damaged or incomplete; download it again.")

    def header(self, only: str | None = None) -> GGUFHeader:
        """Parse the whole header, or only up to the metadata key `only`."""
        magic = self.data[:4]
        if magic != MAGIC:
            raise CheckpointError(f"{self.path}: starts with {magic!r}; a GGUF file starts with {MAGIC!r}.")
        self.at = 4
        version = self.scalar(UINT32)
        if version not in (2, 3):
            raise CheckpointError(
                f"{self.path}: GGUF version {version} is not supported; expected 2 or 3 (little-endian). Convert it again."
            )
        num_tensors = self.scalar(UINT64)
        num_keys = self.scalar(UINT64)
        if num_keys * MIN_KEY_BYTES > self.size or num_tensors * MIN_ROW_BYTES > self.size:
            self.fail(f"{num_tensors} tensors and {num_keys} metadata keys do not fit in {self.size} bytes")
        if num_keys > MAX_KEYS or num_tensors > MAX_TENSORS:
            self.fail(
                f"announces {num_tensors} tensors and {num_keys} keys; expected at most {MAX_TENSORS} and {MAX_KEYS}"
            )
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self.string(MAX_NAME_BYTES)
            if key in metadata:
                self.fail(f"metadata key '{key}' occurs twice")
            kind = self.scalar(UINT32)
            metadata[key] = self.value(kind, key)
            if key == only:
                return GGUFHeader(metadata, [])
        rows = [self.tensor_row() for _ in range(num_tensors)]
        return GGUFHeader(metadata, self.placed(rows, metadata))

    def need(self, count: int) -> int:
        """Advance over `count` bytes and return their start. Fails past the end of the file."""
        start = self.at
        if count > self.size - start:
            self.fail(f"ends at byte {self.size}, but {count} bytes are announced at byte {start}")
        self.at = start + count
        if self.at > MAX_HEADER_BYTES:
            self.fail(f"has more than {MAX_HEADER_BYTES} bytes in front of its weights")
        return start

    def scalar(self, kind: int) -> Any:
        form = SCALARS[kind]
        start = self.need(form.size)
        return form.unpack_from(self.data, start)[0]

    def string(self, limit: int | None = None) -> str:
        length = self.scalar(UINT64)
        if limit is not None and length > limit:
            self.fail(f"a name of {length} bytes is announced at byte {self.at}, expected at most {limit}")
        start = self.need(length)
        try:
            return self.data[start : self.at].decode()
        except UnicodeDecodeError:
            self.fail(f"the string at byte {start} is not UTF-8")

    def value(self, kind: int, key: str) -> Any:
        if kind in SCALARS:
            return self.scalar(kind)
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            self.fail(f"metadata key '{key}' has the unknown type {kind}")
        item = self.scalar(UINT32)
        count = self.scalar(UINT64)
        if item == STRING:
            return self.strings(count, key)
        if item not in SCALARS:
            self.fail(f"metadata key '{key}' is a list of the unknown type {item}")
        form = SCALARS[item]
        start = self.need(count * form.size)
        self.count_items(count, key)
        raw = self.data[start : self.at]
        return np.frombuffer(raw, dtype=np.dtype(form.format)).tolist()

    def count_items(self, count: int, key: str) -> None:
        """Fail when the metadata lists have too many items in total to keep in memory."""
        self.num_items += count
        if self.num_items > MAX_ITEMS:
            self.fail(f"metadata key '{key}' is a list of {count} items; all lists together have at most {MAX_ITEMS}")

    def strings(self, count: int, key: str) -> list[str]:
        """Read a list of strings in one tight loop: vocabularies have hundreds of thousands."""
        if count * 8 > self.size - self.at:
            self.fail(f"metadata key '{key}' announces {count} strings, more than the file holds")
        self.count_items(count, key)
        data = self.data
        at = self.at
        size = min(self.size, MAX_HEADER_BYTES)
        length_at = SCALARS[UINT64].unpack_from
        texts: list[str] = []
        append = texts.append
        try:
            for _ in range(count):
                start = at + 8
                at = start + length_at(data, at)[0]
                if at > size:
                    self.fail(f"metadata key '{key}' holds a string that ends after byte {size}")
                append(data[start:at].decode())
        except struct.error:
            self.fail(f"metadata key '{key}' ends after the end of the file")
        except UnicodeDecodeError:
            self.fail(f"metadata key '{key}' holds a string that is not UTF-8")
        self.at = at
        return texts

    def tensor_row(self) -> GGUFTensor:
        """Read one entry of the table; its `offset` still counts from the start of the data section."""
        name = self.string(MAX_NAME_BYTES)
        num_dimensions = self.scalar(UINT32)
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            self.fail(f"tensor '{name}' has {num_dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}")
        extents = [self.scalar(UINT64) for _ in range(num_dimensions)]
        shape = tuple(reversed(extents))  # the file lists the innermost dimension first
        number = self.scalar(UINT32)
        offset = self.scalar(UINT64)
        kind = BLOCK_TYPES.get(number)
        if kind is None:
            self.fail(f"tensor '{name}' has the unknown type {number}")
        if 0 in shape or shape[-1] % kind.block_size:
            self.fail(f"tensor '{name}' of type {kind.name} has the impossible shape {shape}")
        blocks_per_row = shape[-1] // kind.block_size
        nbytes = math.prod(shape[:-1]) * blocks_per_row * kind.block_bytes
        return GGUFTensor(name, shape, kind, offset, nbytes)

    def placed(self, rows: list[GGUFTensor], metadata: dict[str, Any]) -> list[GGUFTensor]:
        """Return the entries with offsets from the file's start; checks alignment, bounds, overlaps and names."""
        alignment = metadata.get("general.alignment", 32)
        in_range = isinstance(alignment, int) and 1 <= alignment <= MAX_ALIGNMENT
        if not in_range or alignment.bit_count() != 1:
            self.fail(f"general.alignment is {alignment}, expected a power of two up to {MAX_ALIGNMENT}")
        base = -(-self.at // alignment) * alignment
        placed = [row._replace(offset=base + row.offset) for row in rows]
        self.check_places(placed, base, alignment)
        return placed

    def check_places(self, placed: list[GGUFTensor], base: int, alignment: int) -> None:
        """Fail unless the tensors have distinct names and are aligned and consecutive in the file."""
        names: set[str] = set()
        end = base
        for row in sorted(placed, key=lambda row: row.offset):
            if row.name in names:
                self.fail(f"tensor '{row.name}' occurs twice")
            names.add(row.name)
            if row.offset % alignment:
                self.fail(f"tensor '{row.name}' starts at byte {row.offset}, which is not aligned to {alignment}")
            if row.offset < end:
                self.fail(f"tensor '{row.name}' overlaps the tensor before it")
            end = row.offset + row.nbytes
            if end > self.size:
                self.fail(f"tensor '{row.name}' ends at byte {end}, but the file has {self.size}")
