"""A store of others, in the place of a disk.

Owns: `StoreTier`: names and content of its objects, and which of them are not believed. Never does: trust a store: each page is
verified by header, tokens and checksum or MAC, or make the thread that plans steps wait for it. Called by: `KVTiers`.

A look-up does not ask the store: the page may be there, and the thread that reads finds out. A store that fails is left alone
for a while, and counts as empty until then.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Hashable, Iterator, Set

import numpy as np

from core.api.kv_load import KVLoad
from core.api.kv_transfer import Page, PrefixKey
from core_kv_connectors.stores.store import Parts, Store, StoreError
from core_kv_connectors.stores.writer import StoreWriter
from core_kv_connectors.tiers.faults import DAMAGED
from core_kv_connectors.tiers.page_file import MAX_HEADER, PageError, page_in, page_parts
from core_kv_connectors.tiers.page_memory import NewPage, PageMemory
from core_kv_connectors.tiers.page_queue import PendingPage
from core_kv_connectors.tiers.queued_tier import QueuedTier

logger = logging.getLogger(__name__)

NAME_BYTES = 20
FIRST_ASKED, MOST_ASKED = 16, 1024
"""Names that the store is asked for at once: few at first, as most prompts begin with what no engine has."""


class StoreTier(QueuedTier[StoreWriter]):
    """Pages of `page_bytes` bytes in a store.

    fingerprint: of model, numerics and layout; pages of another one have other names, and are not believed.
    secret: for the MAC of each page; empty: a checksum alone. new_page: where pages are read to; None: new memory.
    """

    is_late = True
    """No look-up waits for an answer, so every load may turn out to have no page, and ends where the store hangs."""
    late_s = 0.0

    def __init__(
        self, store: Store, fingerprint: str, page_bytes: int, secret: bytes = b"", new_page: NewPage | None = None
    ) -> None:
        super().__init__(f"of {store.place}")
        self._store = store
        self._fingerprint = fingerprint
        self._secret = secret
        self._page_bytes = page_bytes
        self._memory = PageMemory(page_bytes, new_page)
        self._buffer = np.zeros(4 + MAX_HEADER + page_bytes, np.uint8)
        self._names = self._new_names()
        self._known: dict[str, bool] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._load: KVLoad | None = None
        self._num_asked = FIRST_ASKED
        store.prepare(self._buffer.data.cast("B"))
        self.writer = StoreWriter(store, self._parts_of, self._dropped)
        self.writer.start()

    def leave_alone(self) -> None:
        """Stop asking a store that does not answer, for a while."""
        self._failed("it does not answer")

    def may_have(self, group: int, key: PrefixKey) -> bool:
        """Whether the store is worth asking: it may have a page that was not read with wrong values."""
        return not self._bad or self._name_of(group, key) not in self._bad

    def expect(self, load: KVLoad) -> None:
        """Forget what the store has said before: pages come and go."""
        self._load = load
        self._known = {}
        self._num_asked = FIRST_ASKED
        self._places = {
            self._name_of(group, key): (group, index)
            for group in range(len(load.in_pool))
            for index, key in enumerate(load.keys)
        }

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether the store says that it has a page; it is asked for the following blocks of the load as well."""
        name = self._name_of(group, key)
        if name in self._bad or self._rest.remaining:
            return False
        if self.find(group, key) is not None:
            return True
        if name not in self._known:
            names = self._following(name)
            try:
                self._known.update(zip(names, self._store.has(names), strict=True))
            except (StoreError, OSError) as error:
                self._failed(error)
                return False
            self._rest.end()
        return self._known[name]

    def read(self, group: int, key: PrefixKey) -> Page | None:
        """Return the page of a block, verified, or None. One that fails is not asked for again until it has been computed."""
        name = self._name_of(group, key)
        pending = self.find(group, key)
        if pending is not None:
            return pending
        if name in self._bad or self._rest.remaining:
            return None
        try:
            count = self._store.read(name)
        except (StoreError, OSError) as error:
            self._failed(error)
            return None
        self._rest.end()
        if count is None:
            self._known[name] = False
            self.writer.placed.discard(name)
            return None
        try:
            content = self._buffer.data.cast("B")[:count]
            page = page_in(content, self._fingerprint, group, key, self._page_bytes, self._secret, self._memory.take)
        except PageError as error:
            logger.warning("A KV page of %s is ignored: %s.", self._store.place, error)
            self._faults.add(key, DAMAGED)
            self._condemn(name)
            return None
        self._accept(name, key)
        return page

    def prepare(self) -> Iterator[None]:
        """Make nothing ready: it is not known how many pages come."""
        return iter(())

    def hold(self, owner: Hashable, names: Set[str], share: float, seconds: float) -> bool:
        """Return False: a store of others decides itself what it drops."""
        return False

    def is_held(self, group: int, key: PrefixKey) -> bool:
        """Return False, as `hold` does."""
        return False

    def discard(self, group: int, key: PrefixKey) -> None:
        """Do not use a page again until it has been computed here, and then store it in place of the other one."""
        name = self._name_of(group, key)
        self.writer.forget(name)
        self._condemn(name)

    def pages(self) -> Iterator[tuple[int, bytes]]:
        """List nothing: names of objects tell neither group nor digest, and a store does not say what it drops."""
        return iter(())

    def clear(self) -> None:
        """Never use the pages again that are there now: they cannot be deleted for all, so names change."""
        self.writer.forget_all()
        self._names = self._new_names(secrets.token_bytes(8))

    def close(self, timeout_s: float = 10.0) -> None:
        """Finish storing, end the thread and hang up; pages not stored by then are lost."""
        self.writer.close(timeout_s)
        self._store.close()

    def _name_of(self, group: int, key: PrefixKey) -> str:
        """Return the name of a page's object, 40 hex digits, which cannot be guessed without the secret."""
        digest = self._names.copy()
        digest.update(group.to_bytes(2, "little") + len(key.digest).to_bytes(2, "little") + key.digest + key.payload)
        return digest.hexdigest()

    def _new_names(self, salt: bytes = b"") -> hashlib.blake2b:
        """Return the state of a hash that all names begin with."""
        return hashlib.blake2b(self._fingerprint.encode() + salt, key=self._secret, digest_size=NAME_BYTES)

    def _following(self, name: str) -> list[str]:
        """Return a name and those of the blocks after it in the load, of which nothing is known."""
        place = self._places.get(name)
        if place is None or self._load is None:
            return [name]
        group, index = place
        keys = self._load.keys[index : index + self._num_asked]
        self._num_asked = min(4 * self._num_asked, MOST_ASKED)
        return [name, *(other for key in keys[1:] if (other := self._name_of(group, key)) not in self._known)]

    def _parts_of(self, pending: PendingPage) -> Parts:
        return page_parts(self._fingerprint, pending.group, pending.key, pending.page, self._secret)

    def _failed(self, error: object) -> None:
        super()._failed(error)
        self.writer.placed.clear()  # whatever comes back may have lost them
