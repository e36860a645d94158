"""The index of a tensorizer file: names, dtypes, shapes and offsets, without the library, which imports torch.

Owns: this part of the format (versions 1 to 5). Never does: read tensors. Called by: the tensorizer loader's `resolve`.

A file is `|TZR|`, a version (u32), a header of 56 bytes, the index with its length before it (u64), then the tensors.
All numbers are little-endian. Names, dtypes and shapes are counted lists.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path

from core.api.errors import CheckpointError
from core_runtime.specs.checkpoint import TensorInfo

MAGIC = b"|TZR|"
HEADER = struct.Struct("<32sQ8xQ")
PLACE = struct.Struct("<QQQ")
ENCRYPTED, VERSIONED = 1, 2
ENCRYPTION_VERSION, NEWEST_VERSION = 3, 5
MAX_INDEX_BYTES = 100_000_000
NAMES = {
    "f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8", "u8": "U64", "u4": "U32",
    "u2": "U16", "u1": "U8", "b1": "BOOL", "torch.bfloat16": "BF16", "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
}  # fmt: skip
ITEM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}


def read_index(path: Path) -> dict[str, TensorInfo]:
    """Read the tensors by name. Raises CheckpointError naming the file."""
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as stream:
            if stream.read(len(MAGIC)) != MAGIC:
                raise CheckpointError(f"{path}: is no file of tensorizer.")
            (version,) = struct.unpack("<I", stream.read(4))
            flags, _, count = HEADER.unpack(stream.read(HEADER.size))
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(size, MAX_INDEX_BYTES):
                raise CheckpointError(
                    f"{path}: announces an index of {length} bytes in a file of {size}. It is damaged."
                )
            raw = stream.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from None
    except struct.error:
        raise CheckpointError(f"{path}: ends within its header. Is the download complete?") from None
    if not 1 <= version <= NEWEST_VERSION:
        raise CheckpointError(f"{path}: has version {version} of the format, expected 1 to {NEWEST_VERSION}.")
    if version == ENCRYPTION_VERSION or (version > ENCRYPTION_VERSION and flags[0] & ENCRYPTED):
        raise CheckpointError(f"{path}: is encrypted; write it without encryption, or use --load-format safetensors.")
    is_versioned = version == NEWEST_VERSION and bool(flags[0] & VERSIONED)
    try:
        return _entries(path, raw, count, size, is_versioned=is_versioned)
    except (struct.error, UnicodeDecodeError, IndexError):
        raise CheckpointError(f"{path}: its index is not understood. The file is damaged or incomplete.") from None


def _entries(path: Path, raw: bytes, count: int, size: int, *, is_versioned: bool) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    offset = 0
    for _ in range(count):
        long_shape = False
        if is_versioned:
            (version,) = struct.unpack_from("<I", raw, offset)
            long_shape = version >= NEWEST_VERSION
            offset += 4
        name, offset = _counted(raw, offset, "H")
        offset += 1  # skips the kind (parameter, buffer or dictionary entry), which makes no difference here
        dtype, offset = _counted(raw, offset, "B")
        dimensions = raw[offset]
        item = "Q" if long_shape else "I"
        shape = struct.unpack_from(f"<{dimensions}{item}", raw, offset + 1)
        offset += 1 + struct.calcsize(f"<{dimensions}{item}")
        _, begin, length = PLACE.unpack_from(raw, offset)
        offset += PLACE.size
        info = _tensor(path, name, dtype, shape, (begin, length), size)
        if info.name in tensors:
            raise CheckpointError(f"{path}: tensor '{info.name}' is in the index twice.")
        tensors[info.name] = info
    return tensors


def _counted(raw: bytes, offset: int, count: str) -> tuple[bytes, int]:
    """Return length-prefixed bytes, and their end."""
    (length,) = struct.unpack_from(f"<{count}", raw, offset)
    begin = offset + struct.calcsize(f"<{count}")
    end = begin + length
    if end > len(raw):
        raise struct.error("the index ends within a name")
    return raw[begin:end], end


def _tensor(
    path: Path, raw_name: bytes, raw_dtype: bytes, shape: tuple[int, ...], place: tuple[int, int], size: int
) -> TensorInfo:
    """Parse one entry: dtype, shape and offsets must agree with each other and with the file's size."""
    name = raw_name.decode()
    numpy_name, _, torch_name = raw_dtype.decode().partition("\0")
    dtype = NAMES.get(torch_name or numpy_name.lstrip("<|="))
    if raw_name.startswith(b"\x1e"):
        raise CheckpointError(f"{path}: holds a nested structure; expected the tensors of a model by name.")
    if dtype is None:
        shown = torch_name or numpy_name
        raise CheckpointError(
            f"{path}: tensor '{name}' has dtype {shown}; expected one of {', '.join(NAMES.values())}."
        )
    begin, length = place
    nbytes = math.prod(shape) * ITEM_BYTES.get(dtype, 1)
    if length != nbytes or begin + length > size:
        raise CheckpointError(
            f"{path}: tensor '{name}' of shape {list(shape)} and dtype {dtype} takes {length} bytes from byte {begin} of "
            f"{size}. The file is damaged or incomplete, or was written without its data."
        )
    return TensorInfo(name=name, shape=shape, dtype=dtype, nbytes=nbytes, file=0, offset=begin, source=name)
