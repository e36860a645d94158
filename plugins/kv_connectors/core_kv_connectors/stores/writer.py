"""The thread that hands pages to a store.

Owns: `StoreWriter`. Never does: read a page, or choose which ones are stored. Called by: `StoreTier`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from core.api.kv_transfer import PrefixKey
from core_kv_connectors.stores.store import Parts, Store, StoreError
from core_kv_connectors.tiers.page_queue import PageQueue, PendingPage

logger = logging.getLogger(__name__)

MOST_PLACED = 1 << 20
"""Names that are remembered; then all are forgotten, and asked for again."""


class StoreWriter(PageQueue):
    """Stores pages in order of submission. parts_of: returns the content of a page's object."""

    def __init__(
        self, store: Store, parts_of: Callable[[PendingPage], Parts], on_dropped: Callable[[PrefixKey], None]
    ) -> None:
        super().__init__("kv-store", on_dropped)
        self._store = store
        self._parts_of = parts_of

    def _try_to_store(self, name: str, pending: PendingPage) -> bool:
        if self.find(name) is not pending:
            return True
        try:
            self._store.write(name, self._parts_of(pending), replaces=pending.replaces)
        except (StoreError, OSError) as error:
            self.num_dropped += 1
            self._on_dropped(pending.key)
            self.placed.clear()  # whatever comes back may have lost them
            if not self.rest.num_failures:
                logger.warning("KV pages cannot be stored in %s for now: %s.", self._store.place, error)
            return False
        with self._changed:
            if len(self.placed) >= MOST_PLACED:
                self.placed.clear()
            if self.find(name) is pending:  # otherwise it was discarded meanwhile
                self.placed.add(name)
        return True
