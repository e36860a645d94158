"""Features of one item, as bytes: what a processor made of it and a tower reads.

Owns: their encoding. Never does: know what an array means. Called by: the processing process, the tower.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray


class Feature(msgspec.Struct, array_like=True):
    """One array, in the machine's byte order. name: the keyword under which the tower takes it."""

    name: str
    dtype: str
    shape: list[int]
    data: bytes


def pack(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Encode the arrays of an item."""
    rows = [Feature(name, each.dtype.str, list(each.shape), each.tobytes()) for name, each in arrays.items()]
    return msgspec.msgpack.encode(rows)


def find(data: bytes, name: str) -> NDArray[np.generic] | None:
    """Return one array of an item, or None. Raises ValueError, msgspec.MsgspecError."""
    rows = msgspec.msgpack.decode(data, type=list[Feature])
    found = next((row for row in rows if row.name == name), None)
    return None if found is None else np.frombuffer(found.data, np.dtype(found.dtype)).reshape(found.shape)


def unpack(data: bytes) -> dict[str, NDArray[np.generic]]:
    """Decode what `pack` wrote. Raises ValueError, msgspec.MsgspecError."""
    rows = msgspec.msgpack.decode(data, type=list[Feature])
    return {row.name: np.frombuffer(row.data, np.dtype(row.dtype)).reshape(row.shape).copy() for row in rows}
