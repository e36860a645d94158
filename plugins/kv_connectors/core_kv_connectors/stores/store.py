"""What a store of others does for pages: named bytes that come back, or do not.

Owns: the contract `Store`, and `StoreError`. Never does: know what a page is, or verify one: `StoreTier` does both. Called by:
`StoreTier` and its writer, which know stores by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

Parts = tuple[bytes, memoryview]
"""Content of an object: the part before the page, and the page."""

LIMIT_S: Final = 2.0
"""Seconds without a byte after which a call has failed."""


class StoreError(Exception):
    """Raised when a store does not answer, or not as its protocol says; the message says what happened."""


class Store(Protocol):
    """A store. One thread calls `has` and `read`, another one calls `write`.

    place: of the store, for messages.
    """

    place: str

    def prepare(self, buffer: memoryview) -> None:
        """Note the memory to which every object is read. Called once, before anything else. Raises ConfigError."""

    def has(self, names: Sequence[str]) -> list[bool]:
        """Whether there is an object of each name. Raises StoreError, OSError."""

    def read(self, name: str) -> int | None:
        """Read an object to the buffer and return its length in bytes, or None without one. Raises StoreError, OSError.

        An object larger than the buffer raises StoreError, before anything of it is read.
        """

    def write(self, name: str, parts: Parts, *, replaces: bool) -> None:
        """Store an object. replaces: also where there is one of the name. Raises StoreError, OSError."""

    def close(self) -> None:
        """Hang up."""
