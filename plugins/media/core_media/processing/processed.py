"""A processed item, and the cache of them that one process has.

Owns: `Processed`, `ProcessedCache` (what any such cache does), `OwnCache`. Never does: process an item, or share memory
(`core_media.processing.shared_cache` does). Called by: the pool.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import msgspec

from core_media.config import IMAGE
from core_media.processing.item_names import ItemName, ItemNames


class Processed(msgspec.Struct, frozen=True):
    """A processed item.

    digest: of its bytes, the options and the processor.
    text: what replaces its placeholder. features: what the tower reads.
    rows, grid: what it would compute, where a request gives it, see `MediaItem`.
    """

    digest: str
    text: str
    features: bytes
    modality: str = IMAGE
    rows: bytes = b""
    grid: list[int] = []


class ProcessedCache(Protocol):
    """Processed items by the digest of their bytes and options, and the clients' ids that stand for them.

    waits: whether a call may wait or copy much, so that it belongs in a thread.
    """

    waits: bool

    def get(self, key: bytes) -> Processed | None:
        """Return an item, if it is still kept."""
        ...

    def put(self, key: bytes, made: Processed) -> None:
        """Keep an item; the oldest ones leave."""
        ...

    def named(self, name: ItemName) -> Processed | None:
        """Return the item that an id stands for, if it is still kept."""
        ...

    def name(self, name: ItemName, key: bytes) -> None:
        """Let an id stand for an item."""
        ...

    def clear(self) -> None:
        """Drop everything."""
        ...

    def close(self) -> None:
        """Give memory back."""
        ...


class OwnCache:
    """The cache of one process. num_bytes: limit, of features alone."""

    waits = False

    def __init__(self, num_bytes: int) -> None:
        self._most = self._room = num_bytes
        self._items: OrderedDict[bytes, Processed] = OrderedDict()
        self._names = ItemNames()

    def get(self, key: bytes) -> Processed | None:
        """Return an item, which becomes the newest."""
        found = self._items.get(key)
        if found is not None:
            self._items.move_to_end(key)
        return found

    def put(self, key: bytes, made: Processed) -> None:
        """Keep an item; the least recently used ones leave. One larger than the cache is not kept."""
        if len(made.features) > self._most or key in self._items:
            return
        self._items[key] = made
        self._room -= len(made.features)
        while self._room < 0:
            _, oldest = self._items.popitem(last=False)
            self._room += len(oldest.features)

    def named(self, name: ItemName) -> Processed | None:
        """Return the item that an id stands for, if it is still kept."""
        key = self._names.get(name)
        return None if key is None else self.get(key)

    def name(self, name: ItemName, key: bytes) -> None:
        """Let an id stand for an item."""
        self._names.put(name, key)

    def clear(self) -> None:
        """Drop all items and ids."""
        self._room = self._most
        self._items.clear()
        self._names.clear()

    def close(self) -> None:
        """Do nothing: the memory is the process's own."""
