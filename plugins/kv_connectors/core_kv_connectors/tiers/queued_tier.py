"""The part of a slow tier that is the same for a disk and for a store: pages that a thread stores, and pauses after failures.

Owns: `QueuedTier`: the pages that wait to be stored, which ones are not believed, and why a page is missing.
Never does: look for a page where it is stored, or read one. Called by: `KVTiers`, through the tiers that inherit from it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from core.api.kv_load import KVLoad
from core.api.kv_transfer import Page, PrefixKey
from core_kv_connectors.tiers.faults import NOT_SAVED, Faults
from core_kv_connectors.tiers.page_queue import PageQueue, PendingPage
from core_kv_connectors.tiers.rest import Rest

logger = logging.getLogger(__name__)

Queue = TypeVar("Queue", bound=PageQueue)


class QueuedTier(ABC, Generic[Queue]):
    """A tier that stores pages by name. Implements that part of `SlowTier`.

    place: where the pages are, for messages, such as `in DIRECTORY`.
    writer: the pages that wait, and the thread that stores them; set by the class that inherits.
    """

    writer: Queue

    def __init__(self, place: str) -> None:
        self._place = place
        self._faults = Faults()
        self._rest = Rest()
        self._bad: set[str] = set()

    @abstractmethod
    def _name_of(self, group: int, key: PrefixKey) -> str:
        """Return the name under which a page is stored."""

    @property
    def num_dropped(self) -> int:
        """Return the number of pages that were not stored because the place was too slow or failed."""
        return self.writer.num_dropped

    @property
    def write_byte_s(self) -> float:
        """Return the processor's seconds that storing a byte took lately; 0 until pages were stored."""
        return self.writer.byte_s

    @property
    def is_ready(self) -> bool:
        """Whether a page passed now would be stored immediately."""
        return self.writer.is_ready and not self._rest.remaining

    @property
    def resting_s(self) -> float:
        """Return the seconds for which a failed place is still not used; 0 when it is usable."""
        return max(self._rest.remaining, self.writer.rest.remaining)

    @property
    def may_be_read(self) -> bool:
        """Whether the place may currently be read."""
        return not self._rest.remaining

    def find(self, group: int, key: PrefixKey) -> Page | None:
        """Return the block's page while it is waiting to be stored, or None."""
        if not self.writer.has_pending:  # mostly so; a step's look-ups ask for hundreds of blocks
            return None
        pending = self.writer.find(self._name_of(group, key))
        return None if pending is None or pending.key.payload != key.payload else pending.page

    def holds(self, group: int, key: PrefixKey) -> bool:
        """Whether this process has stored or read the block's page, or will store it."""
        return self._name_of(group, key) in self.writer.placed or self.find(group, key) is not None

    def write(self, group: int, key: PrefixKey, page: Page) -> None:
        """Queue a page; it is dropped when the place is too slow."""
        if not self.holds(group, key):
            self._faults.forget(key)
            name = self._name_of(group, key)
            is_bad = name in self._bad
            self._bad.discard(name)
            self.writer.put(name, PendingPage(group, key, page, replaces=is_bad))

    def missing(self, key: PrefixKey) -> str:
        """Return why no page of a block is there; see `Faults`."""
        return self._faults.cause(key)

    def late(self, load: KVLoad) -> None:
        """Remember that the pages of a load came too late; see `Faults`."""
        self._faults.late(load)

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Wait until all queued pages are stored; False when that takes too long or the place fails."""
        return self.writer.flush(timeout_s)

    def _dropped(self, key: PrefixKey) -> None:
        self._faults.add(key, NOT_SAVED)

    def _accept(self, name: str, key: PrefixKey) -> None:
        """Note that a page was read, and verified."""
        if name not in self._bad:  # discarded while it was read
            self.writer.placed.add(name)
        self._faults.forget(key)  # it came late before

    def _condemn(self, name: str) -> None:
        """Never return the page of this name, until it has been stored again."""
        self._bad.add(name)
        self.writer.placed.discard(name)

    def _failed(self, error: object) -> None:
        """Stop reading for a while; of consecutive failures only the first is logged."""
        if not self._rest.num_failures:
            logger.warning("KV pages %s cannot be read for now: %s.", self._place, error)
        self._rest.begin()
