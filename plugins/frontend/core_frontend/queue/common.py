"""Counts of API keys that several servers of one machine share (`--shared-limits`), so that limits per key hold for all.

Owns: a row of numbers for each key, and the sums of the other servers' rows. Never does: refuse (the limits do), or know files.
Called by: `QueueLimit`, sessions, files of batches, `core serve` of several models.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Final
from weakref import WeakKeyDictionary

from core_supervision.shared_numbers import Other, SharedNumbers

KIND: Final = b"keycnts1"
DIGEST_BYTES: Final = 32


class Column(IntEnum):
    """The numbers of a row; times are monotonic milliseconds, which all processes of a machine share.

    AT_ONCE, WAITING, TOKENS: of a `QueueShare`. END, BEGIN: when a request probably ends, and when one begins. The batch
    class has the same in FLEX_*.
    SESSIONS, SESSIONS_END: number of sessions, and when the last one has expired. BYTES: of files of batches.
    """

    AT_ONCE = 0
    WAITING = 1
    TOKENS = 2
    END = 3
    BEGIN = 4
    FLEX_AT_ONCE = 5
    FLEX_WAITING = 6
    FLEX_TOKENS = 7
    FLEX_END = 8
    FLEX_BEGIN = 9
    SESSIONS = 10
    SESSIONS_END = 11
    BYTES = 12


NUM_COLUMNS: Final = len(Column)


class CommonCounts:
    """The counts of this server's keys, and those of other servers in the same directory.

    keys: of this server, by their numbers; other servers may number them otherwise. None stands for requests without a key.

    Raises UserError for a directory that cannot be used, or is not this user's alone.
    """

    def __init__(self, directory: str, keys: Sequence[str]) -> None:
        self._digests = [bytes(DIGEST_BYTES), *map(_digest, keys)]
        size = NUM_COLUMNS * len(self._digests)
        self._files = SharedNumbers(directory, "--shared-limits", KIND, b"".join(self._digests), size)
        self._rows: WeakKeyDictionary[Other, dict[bytes, int]] = WeakKeyDictionary()

    def set(self, key: int | None, column: Column, value: int) -> None:
        """Publish one number of a key."""
        self._files.own[NUM_COLUMNS * _place(key) + column] = value

    def others(self, key: int | None, column: Column) -> int:
        """Return the sum of the other servers' numbers of a key."""
        return sum(row[column] for row in self._of_others(key))

    def soonest(self, key: int | None, column: Column) -> int | None:
        """Return the least of the other servers' times of a key; None: there is none."""
        return min((row[column] for row in self._of_others(key) if row[column]), default=None)

    def unexpired(self, key: int | None, column: Column, end: Column) -> int:
        """Return the sum of the other servers' numbers whose time has not come."""
        now = time.monotonic() * 1e3
        return sum(row[column] for row in self._of_others(key) if row[end] > now)

    def forget_dead(self) -> None:
        """Leave out what servers that have ended had published."""
        self._files.forget_dead()

    def _of_others(self, key: int | None) -> list[list[int]]:
        """Return a copy of each other server's row of a key."""
        digest = self._digests[_place(key)]
        found = []
        with self._files.lock:
            for other in self._files.others():
                place = self._rows_of(other).get(digest)
                if place is not None:
                    found.append(other.numbers[place : place + NUM_COLUMNS].tolist())
        return found

    def _rows_of(self, other: Other) -> dict[bytes, int]:
        """Return the places of an other server's rows by the digests of its keys; none where the file does not fit its head."""
        rows = self._rows.get(other)
        if rows is None:
            starts = range(0, len(other.head), DIGEST_BYTES)
            digests = [other.head[start : start + DIGEST_BYTES] for start in starts]
            fits = len(other.numbers) == NUM_COLUMNS * len(digests)
            rows = {digest: row * NUM_COLUMNS for row, digest in enumerate(digests)} if fits else {}
            self._rows[other] = rows
        return rows


def _digest(key: str) -> bytes:
    """Return what stands for an API key in a file."""
    return hashlib.sha256(b"key of shared limits\0" + key.encode("utf-8", "surrogateescape")).digest()


def _place(key: int | None) -> int:
    return 0 if key is None else key + 1
