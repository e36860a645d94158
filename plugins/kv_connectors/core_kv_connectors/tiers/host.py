"""The tier in host memory.

Owns: `HostTier`: pages by key, bounded in bytes; which are dropped first, --kv-eviction says. Never does: files.
Called by: `KVTiers`.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Sequence, Set
from typing import Protocol

import numpy as np
import xxhash

from core.api.kv_transfer import Page, PrefixKey
from core.kv.eviction import load_order
from core.kv.integrity import require
from core_kv_connectors.tiers.faults import DAMAGED, Faults
from core_kv_connectors.tiers.holds import Holds

logger = logging.getLogger(__name__)

PageName = tuple[int, bytes]
"""Group and digest."""

Entry = tuple[bytes, Page, bytes]
"""A page between the payload of its key (its exact tokens) and its checksum (XXH3, 128 bits; empty: not kept)."""


class PageWatcher(Protocol):
    """What is told of pages in host memory, such as the publisher of events."""

    def host_stored(self, group: int, digest: bytes) -> None:
        """Note a page that is here from now on."""
        ...

    def host_removed(self, pages: Iterable[PageName]) -> None:
        """Note pages that are no longer here."""
        ...


class HostTier:
    """Pages in host memory.

    capacity: limit in bytes on all pages.
    checked: verify checksums and drop pages that fail.
    eviction: name of the order in which pages give way.
    num_bytes: current size in bytes.
    watcher: is told which pages come and go; None: nobody is.
    """

    def __init__(self, capacity: int, *, checked: bool = False, eviction: str = "lru") -> None:
        self.capacity = capacity
        self.checked = checked
        self.num_bytes = 0
        self.watcher: PageWatcher | None = None
        self._pages: dict[PageName, Entry] = {}
        self._order = load_order(eviction)
        self._holds: Holds[PageName] = Holds()
        self._faults = Faults()

    def __len__(self) -> int:
        return len(self._pages)

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether the page with exactly these tokens is here."""
        entry = self._pages.get((group, key.digest))
        if entry is None:
            return False
        payload, _, _ = entry
        return payload == key.payload

    def read(self, group: int, key: PrefixKey) -> Page | None:
        """Return the page and mark it as used, or None."""
        if not self.contains(group, key):
            return None
        name = (group, key.digest)
        _, page, checksum = self._pages[name]
        if self._checksum(page) != checksum:
            logger.error("A page of the KV cache has changed in host memory; its tokens are computed again.")
            self.discard(group, key)
            self._faults.add(key, DAMAGED)
            return None
        is_held = name in self._holds
        if not is_held:
            self._order.remove(name)
        self._order.hit(name, key.worth)
        if not is_held:
            self._order.push(name)
        return page

    def write(self, group: int, key: PrefixKey, page: Page) -> None:
        """Store a page, dropping old ones to make room; a page for which that makes too little is not stored."""
        self._faults.forget(key)
        name = (group, key.digest)
        if name in self._pages or page.nbytes > self.capacity:
            return
        while self.num_bytes + page.nbytes > self.capacity:
            if not any(True for _ in self._order):  # all are held
                return
            oldest = self._order.oldest()
            self._order.evict(oldest)
            _, dropped, _ = self._pages.pop(oldest)
            self.num_bytes -= dropped.nbytes
            self._gone([oldest])
        self._pages[name] = (key.payload, page, self._checksum(page))
        self._order.cached(name, name, key.worth)
        if name not in self._holds:
            self._order.push(name)
        self.num_bytes += page.nbytes
        if self.watcher is not None:
            self.watcher.host_stored(*name)

    def missing(self, key: PrefixKey) -> str:
        """Return why no page of a block is there; see `Faults`."""
        return self._faults.cause(key)

    def discard(self, group: int, key: PrefixKey) -> None:
        """Drop a page, if it is here."""
        name = (group, key.digest)
        entry = self._pages.pop(name, None)
        if entry is not None:
            _, page, _ = entry
            self.num_bytes -= page.nbytes
            if name not in self._holds:
                self._order.remove(name)
            self._order.forget(name)
            self._gone([name])

    def hold(self, owner: Hashable, names: Set[PageName], most: int) -> bool:
        """Hold pages for an owner, in place of those it had; False, and no change, where more than `most` would be held."""
        changed = self._holds.put(owner, names, most)
        if changed is None:
            return False
        for act, changes in zip((self._order.remove, self._order.push), changed, strict=True):
            for name in changes:
                if name in self._pages:
                    act(name)
        return True

    def is_held(self, group: int, key: PrefixKey) -> bool:
        """Whether a pin holds a page, here or not."""
        return (group, key.digest) in self._holds

    def _checksum(self, page: Page) -> bytes:
        """Return the checksum; empty if checksums are not kept."""
        return xxhash.xxh3_128_digest(np.ascontiguousarray(page).data) if self.checked else b""

    def clear(self) -> None:
        """Drop all pages."""
        self._gone(list(self._pages))
        self._pages.clear()
        self._order.clear()
        self.num_bytes = 0

    def watch(self, watcher: PageWatcher) -> None:
        """Tell a watcher which pages are here, and from now on which come and go."""
        self.watcher = watcher
        for group, digest in self._pages:
            watcher.host_stored(group, digest)

    def _gone(self, names: Sequence[PageName]) -> None:
        if self.watcher is not None:
            self.watcher.host_removed(names)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless the bytes are counted right and within the bound."""
        free = {name for name in self._pages if name not in self._holds}
        require(set(self._order) == free, "host_tier", "the pages that may give way are not those that no pin holds")
        num_bytes = sum(page.nbytes for _, page, _ in self._pages.values())
        require(num_bytes == self.num_bytes, "host_tier", f"{self.num_bytes} bytes are counted, {num_bytes} are held")
        require(num_bytes <= self.capacity, "host_tier", f"{num_bytes} bytes are held, {self.capacity} may be")
