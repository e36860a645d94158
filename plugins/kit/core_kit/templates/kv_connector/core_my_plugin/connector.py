"""The connector. It keeps pages of evicted blocks, and returns each under its own key alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from core.api.config import EngineConfig
from core.api.kv_transfer import Page, PrefixKey
from core.kv.connector import KVConnector

Name = tuple[str, int, PrefixKey]
"""Fingerprint of the weights, group and key: a page with another one of these is another page."""


class Connector(KVConnector):
    """At most `capacity` bytes of pages; the least recently used ones go first."""

    def __init__(self, capacity: int, fingerprint: Callable[[], str]) -> None:
        self._capacity = capacity
        self._weights = fingerprint()
        self._pages: OrderedDict[Name, Page] = OrderedDict()
        self._num_bytes = 0

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether the page is here."""
        return (self._weights, group, key) in self._pages

    def get(self, group: int, key: PrefixKey) -> Page | None:
        """The page, which counts as used now."""
        name = (self._weights, group, key)
        page = self._pages.get(name)
        if page is not None:
            self._pages.move_to_end(name)
        return page

    def wants(self, group: int, key: PrefixKey) -> bool:
        """Each page once."""
        return not self.contains(group, key)

    def put(self, group: int, key: PrefixKey, page: Page, *, evicted: bool) -> None:
        """Keep a page and drop old ones for it."""
        self._pages[self._weights, group, key] = page
        self._num_bytes += page.nbytes
        while self._num_bytes > self._capacity:
            _, dropped = self._pages.popitem(last=False)
            self._num_bytes -= dropped.nbytes

    def discard(self, group: int, key: PrefixKey) -> None:
        """Forget a page."""
        page = self._pages.pop((self._weights, group, key), None)
        if page is not None:
            self._num_bytes -= page.nbytes

    def cleared(self) -> None:
        """Forget all pages."""
        self._pages.clear()
        self._num_bytes = 0

    def drop_memory(self) -> None:
        """Pages are memory."""
        self.cleared()

    def use_weights(self, config: EngineConfig, fingerprint: Callable[[], str]) -> None:
        """Later pages have another name."""
        self._weights = fingerprint()
