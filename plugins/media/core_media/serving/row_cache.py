"""Rows of items that were computed before, kept for later prompts.

Owns: their memory, within a limit of bytes. Never does: compute. Called by: the observer of media.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple


class RowKey(NamedTuple):
    """An item of a tenant: tenants share no rows, so that no answer's time tells whose picture is known.

    adapter: digest of the adapter that changes the tower; empty: none does.
    """

    tenant: str
    digest: str
    adapter: str = ""


class Computed(NamedTuple):
    """The rows of an item. rows, grid: see `MediaItem`."""

    rows: bytes
    grid: list[int]


class RowCache:
    """The rows of one engine, newest last. num_bytes: limit, of rows alone."""

    def __init__(self, num_bytes: int) -> None:
        self._room = num_bytes
        self._rows: OrderedDict[RowKey, Computed] = OrderedDict()

    def clear(self) -> None:
        """Drop all rows."""
        self._room += sum(len(each.rows) for each in self._rows.values())
        self._rows.clear()

    def get(self, key: RowKey) -> Computed | None:
        """Return the rows of an item, if they are kept."""
        found = self._rows.get(key)
        if found is not None:
            self._rows.move_to_end(key)
        return found

    def put(self, key: RowKey, made: Computed) -> None:
        """Keep the rows of an item; the oldest ones leave. Rows larger than the limit are not kept."""
        if key in self._rows:
            return
        self._rows[key] = made
        self._room -= len(made.rows)
        while self._room < 0:
            _, oldest = self._rows.popitem(last=False)
            self._room += len(oldest.rows)
