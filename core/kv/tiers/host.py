"""The tier in host memory.

Owns: `HostTier`: pages by key, bounded in bytes, least recently used dropped first. Never does: files.
Called by: `KVTiers`.
"""

from __future__ import annotations

from collections import OrderedDict

from core.api.kv_transfer import Page
from core.kv.hashing import PrefixKey
from core.kv.integrity import require

PageName = tuple[int, bytes]
"""Group and digest."""

Entry = tuple[bytes, Page]
"""A page, behind the payload of its key: its very tokens."""


class HostTier:
    """A store of pages.

    capacity:  most bytes of all pages.
    num_bytes: bytes now.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_bytes = 0
        self._pages: OrderedDict[PageName, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether the page of these very tokens is here."""
        entry = self._pages.get((group, key.digest))
        if entry is None:
            return False
        payload, _ = entry
        return payload == key.payload

    def read(self, group: int, key: PrefixKey) -> Page | None:
        """The page, which counts as used now, or None."""
        if not self.contains(group, key):
            return None
        name = (group, key.digest)
        self._pages.move_to_end(name)
        _, page = self._pages[name]
        return page

    def write(self, group: int, key: PrefixKey, page: Page) -> None:
        """Keep a page, dropping old ones for it; one that is larger than the tier is not kept."""
        name = (group, key.digest)
        if name in self._pages or page.nbytes > self.capacity:
            return
        while self.num_bytes + page.nbytes > self.capacity:
            _, oldest = self._pages.popitem(last=False)
            _, dropped = oldest
            self.num_bytes -= dropped.nbytes
        self._pages[name] = (key.payload, page)
        self.num_bytes += page.nbytes

    def discard(self, group: int, key: PrefixKey) -> None:
        """Forget a page, if it is here."""
        entry = self._pages.pop((group, key.digest), None)
        if entry is not None:
            _, page = entry
            self.num_bytes -= page.nbytes

    def clear(self) -> None:
        """Forget everything."""
        self._pages.clear()
        self.num_bytes = 0

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless the bytes are counted right and within the bound."""
        num_bytes = sum(page.nbytes for _, page in self._pages.values())
        require(num_bytes == self.num_bytes, "host_tier", f"{self.num_bytes} bytes are counted, {num_bytes} are held")
        require(num_bytes <= self.capacity, "host_tier", f"{num_bytes} bytes are held, {self.capacity} may be")
