"""Headers of safetensors files: names, shapes, places and metadata, without torch.

Owns: the format and its checks. Never does: read weights. Called by: the safetensors loader.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TypeGuard

from core.api.checkpoint import TensorInfo
from core.api.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
    "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip


METADATA = "__metadata__"


def read_tensors(path: Path, file: int) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """The tensors and the metadata of one file, which is number `file` of the manifest. Raises CheckpointError naming it."""
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
                raise CheckpointError(
                    f"{path}: announces a header of {length} bytes in a file of {size}. The file is damaged or incomplete."
                )
            raw = stream.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from None
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is not a JSON object. The file is damaged.")
    base = 8 + length
    tensors = {}
    for name, entry in header.items():
        if name != METADATA:
            tensors[name] = _tensor(path, file, name, entry, base, size)
    return tensors, _metadata(path, header.get(METADATA) or {})


def _metadata(path: Path, found: object) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise CheckpointError(f"{path}: its metadata is no table of strings. The file is damaged.")
    return found


def _tensor(path: Path, file: int, name: str, entry: object, base: int, size: int) -> TensorInfo:
    """One entry: dtype, shape and place must agree with each other and with the file's size."""
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
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
