"""The stored responses of one tenant, ordered by their last use.

Owns: the entries, their items by id, their bytes. Never does: know other tenants, or limits. Called by: the store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain

from core_apis.responses.items import KeptItem
from core_apis.responses.stored_response import StoredResponse


class Shelf:
    """The shelf of one tenant. num_bytes: of all entries, as last measured."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._entries: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items: dict[str, tuple[StoredResponse, KeptItem]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[StoredResponse]:
        """Yield the entries, least recently used first."""
        return iter(self._entries.values())

    def find(self, response_id: str) -> StoredResponse | None:
        """Return an entry by its id."""
        return self._entries.get(response_id)

    def item(self, name: str) -> tuple[StoredResponse, KeptItem] | None:
        """Return an item by its id, and the entry that stores it."""
        return self._items.get(name)

    def put(self, entry: StoredResponse) -> None:
        """Add an entry, or update its size and items."""
        self._entries[entry.id] = entry
        size = entry.measure()
        self.num_bytes += size - entry.num_bytes
        entry.num_bytes = size
        for item in chain(entry.items, entry.output):
            self._items[item.id] = entry, item

    def touch(self, entry: StoredResponse, now: float) -> None:
        """Mark an entry as used. now: seconds of the store's clock."""
        entry.used = now
        self._entries.move_to_end(entry.id)

    def remove(self, entry: StoredResponse) -> bool:
        """Remove an entry. Return whether it was there."""
        if self._entries.get(entry.id) is not entry:
            return False
        del self._entries[entry.id]
        self.num_bytes -= entry.num_bytes
        self._forget_items(entry)
        return True

    def _forget_items(self, entry: StoredResponse) -> None:
        items: Iterable[KeptItem] = chain(entry.items, entry.output)
        for item in items:
            holder = self._items.get(item.id)
            if holder is not None and holder[0] is entry:
                del self._items[item.id]
