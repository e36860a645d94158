"""Columns of numbers in one buffer, behind a small header.

Owns: the layout of a message: the header's length as 4 bytes, a msgpack header (facts, and name, kind and count of each
column), then the columns, little-endian, each at a multiple of 8 bytes. Never does: know what a column means, or run code
that a message names. Called by: `core.executor.wire`.

A column that is absent is empty, and one that nobody asks for is passed over, so that columns can be added later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Generic, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

Kind = Literal["i4", "i8", "f8", "u1"]
ALIGNMENT = 8
LENGTH_BYTES = 4

Facts = TypeVar("Facts")
T = TypeVar("T")


class WireError(ValueError):
    """A message that cannot be what the other end meant."""


class Column(msgspec.Struct, array_like=True):
    """Where numbers lie in a message.

    kind:  of one number.
    count: how many.
    """

    name: str
    kind: Kind
    count: int

    @property
    def num_bytes(self) -> int:
        """Its length in the message, without what fills up to the next one."""
        return self.count * int(self.kind[1])


class Header(msgspec.Struct, Generic[Facts], array_like=True):
    """The beginning of a message. columns: in the order in which they follow."""

    facts: Facts
    columns: list[Column] = []


class ColumnWriter:
    """One message in the making."""

    def __init__(self) -> None:
        self._columns: list[Column] = []
        self._buffers: list[bytes | memoryview] = []

    def put(self, name: str, values: Sequence[float] | NDArray[Any], kind: Kind = "i4") -> None:
        """Add a column. Raises OverflowError when a number is too large for `kind`."""
        if len(values):
            column = np.ascontiguousarray(values, dtype=f"<{kind}")
            self._add(name, kind, len(column), [column.data])

    def put_keys(self, name: str, keyed: Iterable[int]) -> None:
        """Add the keys of a mapping, whose values are put under the same name."""
        self.put(f"{name}.keys", list(keyed))

    def put_lists(self, name: str, lists: Collection[Sequence[int]]) -> None:
        """Add lists of any lengths."""
        if not lists:
            return
        self.put(f"{name}.lens", [len(items) for items in lists])
        self.put(name, list(chain.from_iterable(lists)))

    def put_tables(self, name: str, tables: Collection[Sequence[Sequence[int]]]) -> None:
        """Add lists of lists of any lengths."""
        if not tables:
            return
        self.put(f"{name}.rows", [len(table) for table in tables])
        self.put_lists(name, list(chain.from_iterable(tables)))

    def put_bytes(self, name: str, parts: Sequence[bytes | NDArray[np.uint8]]) -> None:
        """Add byte strings, which are copied once."""
        if not parts:
            return
        self.put(f"{name}.lens", [len(part) for part in parts], "i8")
        arrays = [np.ascontiguousarray(np.frombuffer(part, np.uint8)) for part in parts]
        count = sum(len(array) for array in arrays)
        self._add(name, "u1", count, [array.data for array in arrays])

    def message(self, facts: msgspec.Struct) -> bytes:
        """Everything as one buffer."""
        header = msgspec.msgpack.encode(Header(facts, self._columns))
        start = len(header).to_bytes(LENGTH_BYTES, "little") + header
        return b"".join([start, _padding(len(start)), *self._buffers])

    def _add(self, name: str, kind: Kind, count: int, parts: Iterable[bytes | memoryview]) -> None:
        if not count:
            return
        column = Column(name, kind, count)
        self._columns.append(column)
        self._buffers += parts
        self._buffers.append(_padding(column.num_bytes))


class ColumnReader(Generic[Facts]):
    """A message, taken apart.

    facts: what the header says besides.

    Raises WireError when the message is cut off, or msgspec.DecodeError when its header is none.
    """

    def __init__(self, message: bytes, decoder: msgspec.msgpack.Decoder[Header[Facts]]) -> None:
        num_header_bytes = int.from_bytes(message[:LENGTH_BYTES], "little")
        end = LENGTH_BYTES + num_header_bytes
        header = decoder.decode(message[LENGTH_BYTES:end])
        self.facts = header.facts
        self._columns: dict[str, NDArray[Any]] = {}
        offset = end + len(_padding(end))
        for column in header.columns:
            num_bytes = column.num_bytes
            if not 0 <= num_bytes <= len(message) - offset:
                raise WireError(
                    f"The column '{column.name}' has {num_bytes} bytes from {offset} on; the message has {len(message)}."
                )
            self._columns[column.name] = np.frombuffer(message, f"<{column.kind}", column.count, offset)
            offset += num_bytes + len(_padding(num_bytes))

    def get(self, name: str, kind: Kind = "i4") -> NDArray[Any]:
        """A column as an array of its own."""
        column = self._columns.get(name)
        if column is None:
            return np.empty(0, f"<{kind}")
        return column.copy()

    def items(self, name: str) -> list[Any]:
        """A column as Python numbers."""
        column = self._columns.get(name)
        if column is None:
            return []
        items: list[Any] = column.tolist()
        return items

    def keyed(self, name: str, values: list[T]) -> dict[int, T]:
        """The mapping whose keys `put_keys` was given."""
        keys = self.items(f"{name}.keys")
        return dict(zip(keys, values, strict=True))

    def lists(self, name: str) -> list[list[int]]:
        """What `put_lists` was given."""
        lens = self.items(f"{name}.lens")
        return split(self.items(name), lens)

    def tables(self, name: str) -> list[list[list[int]]]:
        """What `put_tables` was given."""
        rows = self.items(f"{name}.rows")
        return split(self.lists(name), rows)

    def byte_arrays(self, name: str) -> list[NDArray[np.uint8]]:
        """What `put_bytes` was given, each as an array of its own, so that none keeps the others in memory."""
        data = self._columns.get(name, np.empty(0, np.uint8))
        ends = accumulate(self.items(f"{name}.lens"), initial=0)
        return [data[start:end].copy() for start, end in pairwise(ends)]


def split(values: list[T], lens: list[int]) -> list[list[T]]:
    """Consecutive parts of these lengths. Raises WireError when there are more or fewer values."""
    if sum(lens) != len(values):
        raise WireError(f"{len(values)} values cannot be cut into parts of {sum(lens)}.")
    ends = accumulate(lens, initial=0)
    return [values[start:end] for start, end in pairwise(ends)]


def _padding(num_bytes: int) -> bytes:
    """What fills up to the next column."""
    return b"\0" * (-num_bytes % ALIGNMENT)
