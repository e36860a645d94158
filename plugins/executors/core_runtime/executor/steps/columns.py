"""Columns of numbers in one buffer, after a small header.

Owns: the layout of a message: the header's length as 4 bytes, a msgpack header (facts, and name, kind and count of each
column), then the columns, little-endian, each at a multiple of 8 bytes. Never does: know what a column means, or run code
that a message names. Called by: `plan_wire` and `result_wire`.

A missing column is read as empty, and an unknown one is ignored, so that columns can be added later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Sized
from itertools import accumulate, chain, pairwise
from typing import Any, Generic, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from core.api.decoding import UNREADABLE

Kind = Literal["i4", "i8", "f8", "u1"]
ALIGNMENT = 8
LENGTH_BYTES = 4

Facts = TypeVar("Facts")
T = TypeVar("T")


class WireError(ValueError):
    """Error for a damaged message."""


class Column(msgspec.Struct, array_like=True):
    """The layout of one column in a message.

    kind:  numpy code of one number, little-endian.
    count: number of entries.
    """

    name: str
    kind: Kind
    count: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the column, without the padding up to the next one."""
        item_bytes = int(self.kind[1])
        return self.count * item_bytes


class Header(msgspec.Struct, Generic[Facts], array_like=True):
    """The start of a message.

    facts:   values outside of the columns.
    columns: the columns, in the order in which they follow.
    """

    facts: Facts
    columns: list[Column] = []


class ColumnWriter:
    """Builds one message from its columns."""

    def __init__(self) -> None:
        self._columns: list[Column] = []
        self._buffers: list[bytes | memoryview] = []

    def put(self, name: str, values: Sequence[float] | NDArray[Any], kind: Kind = "i4") -> None:
        """Add a column. Raises OverflowError when a number is too large for `kind`."""
        if len(values):
            numbers = np.ascontiguousarray(values, dtype=f"<{kind}")
            self._add(name, kind, len(numbers), [numbers.data])

    def put_keys(self, name: str, keyed: Iterable[int]) -> None:
        """Add the keys of a mapping; the caller puts its values under the same name."""
        self.put(f"{name}.keys", list(keyed))

    def put_lists(self, name: str, lists: Collection[Sequence[int]]) -> None:
        """Add lists of any lengths as two columns: the lengths and all items."""
        if not lists:
            return
        lens = [len(items) for items in lists]
        together = list(chain.from_iterable(lists))
        self.put(f"{name}.lens", lens)
        self.put(name, together)

    def put_tables(self, name: str, tables: Collection[Sequence[Sequence[int]]]) -> None:
        """Add lists of lists of any lengths."""
        if not tables:
            return
        num_rows = [len(table) for table in tables]
        rows = list(chain.from_iterable(tables))
        self.put(f"{name}.rows", num_rows)
        self.put_lists(name, rows)

    def put_bytes(self, name: str, parts: Sequence[bytes | NDArray[np.uint8]]) -> None:
        """Add byte strings. They are copied once, by `message`."""
        if not parts:
            return
        lens: list[int] = []
        buffers: list[memoryview] = []
        for part in parts:
            array = np.ascontiguousarray(np.frombuffer(part, np.uint8))
            lens.append(len(part))
            buffers.append(array.data)
        self.put(f"{name}.lens", lens, "i8")
        self._add(name, "u1", sum(lens), buffers)

    def message(self, facts: msgspec.Struct) -> bytes:
        """Return the whole message as one buffer."""
        header = msgspec.msgpack.encode(Header(facts, self._columns))
        length = len(header).to_bytes(LENGTH_BYTES, "little")
        padding = _padding(LENGTH_BYTES + len(header))
        return b"".join([length, header, padding, *self._buffers])

    def _add(self, name: str, kind: Kind, count: int, parts: Iterable[bytes | memoryview]) -> None:
        if not count:
            return
        column = Column(name, kind, count)
        self._columns.append(column)
        self._buffers += parts
        self._buffers.append(_padding(column.num_bytes))


class ColumnReader(Generic[Facts]):
    """A received message, split into its columns.

    facts: values of the header outside of the columns.

    Raises WireError when the message is truncated or its header cannot be read.
    """

    def __init__(self, message: bytes, decoder: msgspec.msgpack.Decoder[Header[Facts]]) -> None:
        length = message[:LENGTH_BYTES]
        end = LENGTH_BYTES + int.from_bytes(length, "little")
        try:
            header = decoder.decode(message[LENGTH_BYTES:end])
        except UNREADABLE as error:
            raise WireError(f"The header of {end} bytes cannot be read: {error}.") from error
        self.facts = header.facts
        self._columns: dict[str, NDArray[Any]] = {}
        offset = end + len(_padding(end))
        for column in header.columns:
            num_bytes = column.num_bytes
            num_left = len(message) - offset
            # The count comes from the message, and could point outside of it.
            if not 0 <= num_bytes <= num_left:
                raise WireError(
                    f"The column '{column.name}' has {num_bytes} bytes from {offset} on; the message has {len(message)}."
                )
            # A view; `get` and `byte_arrays` copy what outlives the message.
            numbers = np.frombuffer(message, f"<{column.kind}", column.count, offset)
            self._columns[column.name] = numbers
            offset += num_bytes
            offset += len(_padding(num_bytes))

    def get(self, name: str, kind: Kind = "i4") -> NDArray[Any]:
        """Return a column as an array of its own; empty if it is missing."""
        column = self._columns.get(name)
        if column is None:
            return np.empty(0, f"<{kind}")
        return column.copy()

    def items(self, name: str) -> list[Any]:
        """Return a column as Python numbers; empty if it is missing."""
        column = self._columns.get(name)
        if column is None:
            return []
        items: list[Any] = column.tolist()
        return items

    def keyed(self, name: str, values: list[T]) -> dict[int, T]:
        """Return the mapping whose keys `put_keys` wrote. Raises WireError when `values` has another length."""
        keys = self.items(f"{name}.keys")
        check_equal_lens(name, keys, values)
        return dict(zip(keys, values, strict=True))

    def lists(self, name: str) -> list[list[int]]:
        """Return the lists that `put_lists` wrote."""
        lens = self.items(f"{name}.lens")
        return split(self.items(name), lens)

    def tables(self, name: str) -> list[list[list[int]]]:
        """Return the tables that `put_tables` wrote."""
        rows = self.items(f"{name}.rows")
        return split(self.lists(name), rows)

    def byte_arrays(self, name: str) -> list[NDArray[np.uint8]]:
        """Return the byte strings that `put_bytes` wrote, each copied, so that none keeps the whole message in memory."""
        together = self._columns.get(name, np.empty(0, np.uint8))
        lens = self.items(f"{name}.lens")
        return [together[start:end].copy() for start, end in _cuts(len(together), lens)]


def split(values: list[T], lens: list[int]) -> list[list[T]]:
    """Cut values into consecutive parts of these lengths. Raises WireError when the lengths do not cover the values."""
    return [values[start:end] for start, end in _cuts(len(values), lens)]


def check_equal_lens(name: str, *columns: Sized) -> None:
    """Raise WireError when columns that belong together have different lengths. name: used in the error message."""
    lens = [len(column) for column in columns]
    if len(set(lens)) > 1:
        raise WireError(f"The columns of '{name}' have {', '.join(map(str, lens))} entries; expected as many in each.")


def _cuts(num_values: int, lens: list[int]) -> Iterable[tuple[int, int]]:
    """Return start and end of each part. Raises WireError unless they cover the values."""
    # With a negative length the sum could match although parts overlap.
    if sum(lens) != num_values or min(lens, default=0) < 0:
        raise WireError(f"{num_values} values cannot be cut into parts of {sum(lens)}.")
    ends = accumulate(lens, initial=0)
    return pairwise(ends)


def _padding(num_bytes: int) -> bytes:
    """Return the zeros up to the start of the next column."""
    return b"\0" * (-num_bytes % ALIGNMENT)
