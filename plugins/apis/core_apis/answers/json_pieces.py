"""JSON that is written piece by piece, so that no single call holds the interpreter for long.

Owns: the division of long lists of numbers and entries, and how pieces are embedded in a body. Never does: send. Called
by: writers of answers whose size a client chooses, from a thread.

An encoder in C writes 100 MB in one call. Meanwhile nothing else in the process runs, whichever thread makes the call.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from numpy.typing import NDArray

PIECE = 8192
"""Numbers, or bytes of a text, that are written in one call: about 2 ms."""
ENTRIES = 256
"""Entries of other kinds that are written in one call, in about the same time."""
MARK = b"\0"
"""A placeholder for a piece. JSON never contains this byte, not even within strings."""

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class JsonPieces:
    """One body. Its long parts are written first, and placeholders stand for them when the rest is encoded."""

    def __init__(self) -> None:
        self._parts: list[list[bytes]] = []

    def numbers(self, array: NDArray[Any]) -> Any:
        """Write a vector, or a list of vectors, as JSON numbers; return the placeholder."""
        if array.ndim == 1:
            return self._put([_encode(array.tolist())])
        return self._put(_listed(_encode(rows.tolist()) for rows in slices(array)))

    def text(self, parts: Iterable[bytes]) -> Any:
        """Write bytes as base64; return the placeholder."""
        return self._put([b'"', *encoded64(parts), b'"'])

    def entries(self, items: Sequence[Any]) -> Any:
        """Write a list of anything, which may contain placeholders of the other methods; return its placeholder."""
        return self._put(_listed(map(_encode, batches(items))))

    def body(self, shell: Any) -> list[bytes]:
        """Return the whole body in pieces. shell: the rest of the body, with the placeholders in it."""
        return list(self._spelled_out(_encode(shell)))

    def _spelled_out(self, written: bytes) -> Iterator[bytes]:
        for place, piece in enumerate(written.split(MARK)):
            if not place % 2:
                yield piece
                continue
            for part in self._parts[int(piece)]:
                # Entries of a list may contain placeholders themselves.
                if MARK in part:
                    yield from self._spelled_out(part)
                else:
                    yield part

    def _put(self, pieces: list[bytes]) -> Any:
        self._parts.append(pieces)
        return msgspec.Raw(MARK + str(len(self._parts) - 1).encode() + MARK)


def slices(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the rows of an array, a few at a time."""
    if array.ndim == 1:
        yield array
        return
    step = max(1, PIECE // max(1, array.shape[1]))
    for start in range(0, len(array), step):
        yield array[start : start + step]


def encoded64(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the base64 of bytes that come in parts, as if they came as one."""
    rest = b""
    for part in parts:
        rest += part
        end = len(rest) - len(rest) % 3
        yield base64.b64encode(rest[:end])
        rest = rest[end:]
    yield base64.b64encode(rest)


def long_list(items: Sequence[Any]) -> Any:
    """Return the list itself, or, if it is long, a lazy list that an encoder accepts and that is written piece by
    piece.
    """
    return items if len(items) <= ENTRIES else joined(batches(items))


def joined(lists: Iterable[Sequence[Any]]) -> Any:
    """Return one list with the entries of several, which are iterated one by one and need not exist at the same time."""
    return msgspec.Raw(b"".join(_listed(map(_encode, lists))))


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield a long list, a few entries at a time."""
    for start in range(0, len(items), ENTRIES):
        yield items[start : start + ENTRIES]


def _listed(lists: Iterable[bytes]) -> list[bytes]:
    """Join the entries of several serialized lists into one list."""
    pieces = [b"["]
    for number, piece in enumerate(lists):
        pieces.append(b"," + piece[1:-1] if number else piece[1:-1])
    pieces.append(b"]")
    return pieces
