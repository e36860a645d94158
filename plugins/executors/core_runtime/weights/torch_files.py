"""Reader of `torch.save` files: names, types, shapes, strides and places of tensors, without torch.

Owns: the zip format of torch 1.6 and later, and its checks. Never does: read weights, or run what a pickle names.
Called by: the pt loader, and the server for tensors in requests.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from typing import Any, BinaryIO, NamedTuple

from core.api.errors import CheckpointError
from core_runtime.specs.checkpoint import ITEM_BYTES, TensorInfo
from core_runtime.weights.pickle_records import Call, Global, Storage, read_records

STORAGES = {
    "torch.DoubleStorage": "F64", "torch.FloatStorage": "F32", "torch.HalfStorage": "F16", "torch.BFloat16Storage": "BF16",
    "torch.LongStorage": "I64", "torch.IntStorage": "I32", "torch.ShortStorage": "I16", "torch.CharStorage": "I8",
    "torch.ByteStorage": "U8", "torch.BoolStorage": "BOOL",
}  # fmt: skip
TYPES = {
    "torch.float8_e4m3fn": "F8_E4M3", "torch.float8_e5m2": "F8_E5M2", "torch.float8_e8m0fnu": "F8_E8M0",
    "torch.uint16": "U16", "torch.uint32": "U32", "torch.uint64": "U64",
}  # fmt: skip
UNTYPED = "torch.storage.UntypedStorage"
TENSOR = "torch._utils._rebuild_tensor_v2"
TYPED_TENSOR = "torch._utils._rebuild_tensor_v3"
PARAMETER = "torch._utils._rebuild_parameter"
TENSORS = (TENSOR, TYPED_TENSOR, PARAMETER)
KNOWN = frozenset({*STORAGES, *TYPES, UNTYPED, TENSOR, TYPED_TENSOR, PARAMETER, "collections.OrderedDict"})
MAX_PICKLE_BYTES = 32_000_000
"""Maximum bytes of a pickle. One of 100,000 tensors has 15 MB; each byte of a hostile one can become an object of 60
bytes.
"""
MAX_SMALL_PICKLE_BYTES = 16_384
"""Maximum bytes of the pickle of one tensor."""
MEMBER = b"PK\x01\x02"
MOST_MEMBERS = 64
MOST_DIMENSIONS = 64
LOCAL_HEADER_BYTES = 30


class StoredTensor(NamedTuple):
    """A tensor and the layout of its elements. strides: in elements, one per dimension."""

    info: TensorInfo
    strides: tuple[int, ...]


class _Place(NamedTuple):
    """Location of bytes in a file."""

    offset: int
    nbytes: int


class _Entry(NamedTuple):
    """A tensor as described by the pickle. key: key of its storage. begin: index of its first element there."""

    key: str
    begin: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


def read_tensors(path: str, file: int) -> dict[str, StoredTensor]:
    """Read the tensors of one file, which is number `file` of the manifest. Raises CheckpointError naming file and tensor."""
    try:
        with open(path, "rb") as stream:
            raw, places = _open(path, stream, MAX_PICKLE_BYTES)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error}).") from None
    found = read_records(path, raw, KNOWN)
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: holds no dictionary of tensors. Save model.state_dict().")
    tensors: dict[str, StoredTensor] = {}
    for name, value in _unwrapped(found).items():
        if not isinstance(name, str):
            raise CheckpointError(f"{path}: has an entry called {name!r}; expected names of tensors.")
        tensors[name] = _tensor(path, file, name, value, places)
    return tensors


def _unwrapped(found: dict[Any, Any]) -> dict[Any, Any]:
    """Return the dictionary of tensors of a file of fairseq2, which has it under a key that `model_key` names."""
    key = found.get("model_key")
    inner = found.get(key) if isinstance(key, str) else None
    return inner if isinstance(inner, dict) and len(found) == 2 else found


def read_tensor(name: str, data: bytes) -> StoredTensor:
    """Read the one tensor of an untrusted file; its offset is within `data`. name: for errors. Raises CheckpointError."""
    if data.count(MEMBER) > MOST_MEMBERS:  # before zipfile makes an object of each
        raise CheckpointError(f"{name}: has more than {MOST_MEMBERS} members; expected the file of one tensor.")
    raw, places = _open(name, io.BytesIO(data), MAX_SMALL_PICKLE_BYTES)
    value = read_records(name, raw, KNOWN)
    if not isinstance(value, Call) or value.function not in TENSORS:
        raise CheckpointError(f"{name}: holds a {type(value).__name__}; expected one tensor, as torch.save writes it.")
    return _tensor(name, 0, name, value, places)


def _open(path: str, stream: BinaryIO, most: int) -> tuple[bytes, dict[str, _Place]]:
    """Return the pickle of a file, at most `most` bytes, and the places of its storages by key."""
    try:
        with zipfile.ZipFile(stream) as archive:
            members = {entry.filename: entry for entry in archive.infolist()}
            # Readers differ in which of the two they take, so a check could see another tensor than the one that is used.
            if len(members) < len(archive.infolist()):
                raise CheckpointError(f"{path}: has two members of one name. The file is damaged.")
            pickles = [name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise CheckpointError(f"{path}: is a zip file, but not one of torch.save: it has no data.pkl.")
            root = pickles[0].removesuffix("data.pkl")
            _check_members(path, root, archive, members, most)
            raw = archive.read(pickles[0])
        return raw, _places(path, stream, f"{root}data/", members)
    except zipfile.BadZipFile as error:
        stream.seek(0)
        if stream.read(2) == b"PK":
            raise CheckpointError(f"{path}: is damaged or incomplete ({error}).") from None
        raise CheckpointError(
            f"{path}: is no file of torch 1.6 or later, which are zip files; load it with torch, look at what it runs, and "
            "save it again with torch.save or as safetensors."
        ) from None
    # zipfile raises all of these for archives that are damaged, encrypted or of a newer version.
    except (OSError, NotImplementedError, RuntimeError, EOFError, ValueError, OverflowError, struct.error) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}).") from None


def _check_members(
    path: str, root: str, archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], most: int
) -> None:
    """Check that members are not compressed, have this machine's byte order, and that the pickle has a sensible size."""
    for name, entry in members.items():
        # A compressed member has no places to read from, and could expand to any size.
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise CheckpointError(f"{path}: its member {name} is compressed, which torch.save never does.")
    if members[f"{root}data.pkl"].file_size > most:
        raise CheckpointError(f"{path}: its pickle has more than {most} bytes.")
    order = members.get(f"{root}byteorder")
    if order is not None and order.file_size < 16 and archive.read(order).strip() != b"little":
        raise CheckpointError(f"{path}: was written by a machine with another order of bytes.")


def _places(path: str, stream: BinaryIO, prefix: str, members: dict[str, zipfile.ZipInfo]) -> dict[str, _Place]:
    """Return the place of each storage; the local header gives the padding before it."""
    size = stream.seek(0, io.SEEK_END)
    places: dict[str, _Place] = {}
    for name, entry in members.items():
        if not name.startswith(prefix):
            continue
        stream.seek(entry.header_offset)
        header = stream.read(LOCAL_HEADER_BYTES)
        # The local header has a padding that aligns the storage; the central directory does not tell its length.
        name_length = int.from_bytes(header[26:28], "little")
        extra_length = int.from_bytes(header[28:30], "little")
        offset = entry.header_offset + LOCAL_HEADER_BYTES + name_length + extra_length
        if header[:4] != b"PK\x03\x04" or offset + entry.file_size > size:
            raise CheckpointError(f"{path}: its member {name} does not lie in the file. The file is damaged.")
        places[name.removeprefix(prefix)] = _Place(offset, entry.file_size)
    return places


def _tensor(path: str, file: int, name: str, value: Any, places: dict[str, _Place]) -> StoredTensor:
    """Check one entry of the dictionary: storage, place, shape and strides must agree with each other and with the file."""
    # nn.Parameter wraps its tensor; checkpoints contain both.
    if isinstance(value, Call) and value.function == PARAMETER and value.arguments:
        value = value.arguments[0]
    if not isinstance(value, Call) or value.function not in (TENSOR, TYPED_TENSOR):
        raise CheckpointError(f"{path}: '{name}' is no tensor; expected a dictionary of tensors alone.")
    entry = _entry(value)
    if entry is None:
        raise CheckpointError(f"{path}: the entry of tensor '{name}' is not understood. The file is damaged.")
    key, begin, shape, strides, dtype = entry
    place = places.get(key)
    if place is None:
        raise CheckpointError(f"{path}: the values of tensor '{name}' are missing. Is the download complete?")
    count = math.prod(shape)
    item_bytes = ITEM_BYTES[dtype]
    last = begin + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    # A tensor without elements may begin anywhere.
    if count and (last + 1) * item_bytes > place.nbytes:
        raise CheckpointError(
            f"{path}: tensor '{name}' of shape {list(shape)} and dtype {dtype} ends at byte {(last + 1) * item_bytes} of a "
            f"storage of {place.nbytes}. The file is damaged or incomplete."
        )
    info = TensorInfo(
        name=name,
        shape=shape,
        dtype=dtype,
        nbytes=count * item_bytes,
        file=file,
        offset=place.offset + begin * item_bytes if count else place.offset,
        source=name,
    )
    return StoredTensor(info, strides)


def _entry(value: Call) -> _Entry | None:
    """Return a call's description of its tensor; None if it is not as torch writes it."""
    if len(value.arguments) < 4:
        return None
    storage, begin, shape, strides, *rest = value.arguments
    numbers = _is_natural(begin) and _are_naturals(shape) and _are_naturals(strides)
    if not numbers or len(strides) != len(shape) or not isinstance(storage, Storage):
        return None
    named = rest[2] if value.function == TYPED_TENSOR and len(rest) > 2 else None
    dtype = _dtype(storage, named)
    if dtype is None or not isinstance(storage.fields[2], str):
        return None
    return _Entry(storage.fields[2], begin, shape, strides, dtype)


def _dtype(storage: Storage, named: Any) -> str | None:
    """Return a tensor's dtype from its storage's type, or from its own name if the storage has none."""
    fields = storage.fields
    if len(fields) != 5 or fields[0] != "storage" or not isinstance(fields[1], Global):
        return None
    if fields[1].name == UNTYPED:
        return TYPES.get(named.name) if isinstance(named, Global) else None
    return STORAGES.get(fields[1].name)


def _is_natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _are_naturals(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) <= MOST_DIMENSIONS and all(_is_natural(item) for item in value)
