"""Headers of safetensors files: names, shapes, offsets and metadata, without torch.

Owns: the format and its checks. Never does: read weights. Called by: the safetensors loader.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeGuard

from core.api.errors import CheckpointError
from core_runtime.specs.checkpoint import ITEM_BYTES, TensorInfo
from core_tokens.checkpoint_files import parse_json

MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 64
METADATA = "__metadata__"


class Header(NamedTuple):
    """The parsed header of one file, or of all files together.

    tensors: by name.
    metadata: strings by name, about the tensors or the writing tool.
    """

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]


def read_all(files: Sequence[Path]) -> Header:
    """Read the headers of all files of one model. Raises CheckpointError, also for a name that is in two of them."""
    return together([read_header(file, number) for number, file in enumerate(files)], [str(file) for file in files])


def together(headers: Sequence[Header], files: Sequence[str]) -> Header:
    """Merge the headers of all files. files: their names. Raises CheckpointError for a tensor that is in two of them."""
    whole = Header({}, {})
    for number, header in enumerate(headers):
        whole.metadata.update(header.metadata)
        for name, info in header.tensors.items():
            if name in whole.tensors:
                other = Path(files[whole.tensors[name].file]).name
                raise CheckpointError(f"{files[number]}: tensor '{name}' is also in {other}.")
            whole.tensors[name] = info
    return whole


def read_header(path: Path, file: int) -> Header:
    """Read the header of one file, number `file` in the manifest. Raises CheckpointError naming the file."""
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as stream:
            length = header_bytes(path, stream.read(8), size)
            raw = stream.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from None
    return parsed(path, raw, size, file)


def header_bytes(path: Path | str, first: bytes, size: int) -> int:
    """Return the header's size in a file of `size` bytes. first: its first 8 bytes. Raises CheckpointError for an
    impossible size.
    """
    length = int.from_bytes(first, "little")
    if size < 8 or not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
        raise CheckpointError(
            f"{path}: announces a header of {length} bytes in a file of {size}. The file is damaged or incomplete."
        )
    return length


def parsed(path: Path | str, raw: bytes, size: int, file: int) -> Header:
    """Parse the header `raw` of a file of `size` bytes. path: for errors. Raises CheckpointError."""
    try:
        header = parse_json(path, raw)
    except CheckpointError:
        header = None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is not a JSON object. The file is damaged.")
    base = 8 + len(raw)
    tensors = {}
    for name, entry in header.items():
        if name != METADATA:
            tensors[name] = _tensor(path, file, name, entry, base, size)
    _check_places(path, tensors.values(), base, size)
    return Header(tensors, _metadata(path, header.get(METADATA) or {}))


def _metadata(path: Path | str, found: object) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise CheckpointError(f"{path}: its metadata is no table of strings. The file is damaged.")
    return found


def _check_places(path: Path | str, tensors: Iterable[TensorInfo], base: int, size: int) -> None:
    """Check that the tensors fill the file without overlaps or gaps. Raises CheckpointError."""
    end = base
    before = "the header"
    for info in sorted(tensors, key=lambda info: (info.offset, info.nbytes)):
        if info.offset != end:
            how = "overlaps" if info.offset < end else "leaves a gap behind"
            raise CheckpointError(f"{path}: tensor '{info.name}' {how} {before}. The file is damaged.")
        end = info.offset + info.nbytes
        before = f"tensor '{info.name}'"
    if end != size:
        raise CheckpointError(f"{path}: {size - end} bytes follow {before}, the last one. The file is damaged.")


def _tensor(path: Path | str, file: int, name: str, entry: object, base: int, size: int) -> TensorInfo:
    """Parse one entry: dtype, shape and offsets must agree with each other and with the file's size."""
    fields = entry if isinstance(entry, dict) else {}
    dtype = fields.get("dtype")
    shape = fields.get("shape")
    place = fields.get("data_offsets")
    if not (_naturals(shape) and _naturals(place) and len(place) == 2 and isinstance(dtype, str)):
        raise CheckpointError(f"{path}: the entry of tensor '{name}' is not understood. The file is damaged.")
    if dtype not in ITEM_BYTES:
        known = ", ".join(ITEM_BYTES)
        raise CheckpointError(f"{path}: tensor '{name}' has dtype {dtype}; expected one of {known}.")
    begin, end = place
    nbytes = math.prod(shape) * ITEM_BYTES[dtype]
    if end - begin != nbytes or base + end > size:
        raise CheckpointError(
            f"{path}: tensor '{name}' of shape {shape} and dtype {dtype} lies at bytes {begin} to {end} of {size - base}. "
            "The file is damaged or incomplete."
        )
    return TensorInfo(
        name=name,
        shape=tuple(shape),
        dtype=dtype,
        nbytes=nbytes,
        file=file,
        offset=base + begin,
        source=name,
    )


def _naturals(value: object) -> TypeGuard[list[int]]:
    """Whether it is a short list of natural numbers: multiplying long lists could take unbounded time."""
    if not isinstance(value, list) or len(value) > MAX_DIMENSIONS:
        return False
    return all(type(item) is int and 0 <= item < 1 << 63 for item in value)
