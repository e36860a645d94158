"""JSON that is written piece by piece, so that no single call holds the interpreter for long.

Owns: the cutting of long lists of numbers and entries, and how pieces stand within a body. Never does: send.
Called by: writers of answers whose size a client chooses, from a thread.

An encoder in C writes 100 MB in one go, and nothing else of the process moves meanwhile, in whichever thread it runs.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from numpy.typing import NDArray

PIECE = 8192
"""Numbers, or bytes of a text, that are written at once: some 2 ms."""
ENTRIES = 256
"""The same of entries of another kind."""
MARK = b"\0"
"""JSON has no such byte, also not within strings."""

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class JsonPieces:
    """One body. Its long parts are written first, and stand for themselves in what is encoded as a whole."""

    def __init__(self) -> None:
        self._parts: list[list[bytes]] = []

    def numbers(self, array: NDArray[Any]) -> Any:
        """A vector, or a list of vectors: the numbers as JSON has them."""
        if array.ndim == 1:
            return self._put([_encode(array.tolist())])
        return self._put(_listed(_encode(rows.tolist()) for rows in slices(array)))

    def text(self, parts: Iterable[bytes]) -> Any:
        """Bytes as base64."""
        return self._put([b'"', *encoded64(parts), b'"'])

    def entries(self, items: Sequence[Any]) -> Any:
        """A list of anything, in which the other methods' results may stand."""
        return self._put(_listed(map(_encode, batches(items))))

    def body(self, shell: Any) -> list[bytes]:
        """The whole in pieces. shell: holds what the other methods gave."""
        return list(self._spelled_out(_encode(shell)))

    def _spelled_out(self, written: bytes) -> Iterator[bytes]:
        for place, piece in enumerate(written.split(MARK)):
            if not place % 2:
                yield piece
                continue
            for part in self._parts[int(piece)]:
                if MARK in part:
                    yield from self._spelled_out(part)
                else:
                    yield part

    def _put(self, pieces: list[bytes]) -> Any:
        self._parts.append(pieces)
        return msgspec.Raw(MARK + str(len(self._parts) - 1).encode() + MARK)


def slices(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The rows of an array, some at a time."""
    if array.ndim == 1:
        yield array
        return
    step = max(1, PIECE // max(1, array.shape[1]))
    for start in range(0, len(array), step):
        yield array[start : start + step]


def encoded64(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Base64 of bytes that come in parts, as if they came as one."""
    rest = b""
    for part in parts:
        rest += part
        end = len(rest) - len(rest) % 3
        yield base64.b64encode(rest[:end])
        rest = rest[end:]
    yield base64.b64encode(rest)


def long_list(items: Sequence[Any]) -> Any:
    """A list, or where it is long what an encoder takes for it: the same, written piece by piece."""
    return items if len(items) <= ENTRIES else joined(batches(items))


def joined(lists: Iterable[Sequence[Any]]) -> Any:
    """One list of the entries of several, which are asked for one by one: they need not be there all at once."""
    return msgspec.Raw(b"".join(_listed(map(_encode, lists))))


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """A long list, some entries at a time."""
    for start in range(0, len(items), ENTRIES):
        yield items[start : start + ENTRIES]


def _listed(lists: Iterable[bytes]) -> list[bytes]:
    """One list of the entries of several."""
    pieces = [b"["]
    for number, piece in enumerate(lists):
        pieces.append(b"," + piece[1:-1] if number else piece[1:-1])
    pieces.append(b"]")
    return pieces
