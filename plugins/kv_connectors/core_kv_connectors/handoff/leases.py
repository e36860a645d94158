"""Leases: pages that a producer keeps for the one that brings the ticket.

Owns: `Leases`: which pages belong to which lease, how long, and the tickets. Never does: copy a block or send a page. Called
by: the connector, on the thread that plans steps, and the listener's threads (claim, pages, end).

A page under a lease is in host memory, or a copy of its block is on the way. It leaves with its last lease: nothing else needs
it here, since the KV cache has the block as well.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from core.api.kv_transfer import Page, PrefixKey
from core.kv.integrity import require
from core_kv_connectors.handoff.ticket import KEY_BYTES, Ticket, read, tenant_digest, written
from core_kv_connectors.peers.offer import name_of

MOST_LEASES: Final = 4096
"""Limit on leases at once; a request beyond it is answered without a ticket."""
COPY_WAIT_S: Final = 1.5
"""Seconds that a peer's question for a page waits for the copy of its block: less than the peer waits for an answer."""


@dataclass(slots=True)
class LeasedPage:
    """A page of one or more leases. page: None until the copy of its block arrives. is_lost: whether none will."""

    group: int
    key: PrefixKey
    page: Page | None = None
    is_lost: bool = False
    num_leases: int = 0


@dataclass(slots=True)
class Lease:
    """One lease. names: of its pages, in the order in which they are needed. until: on the clock. is_claimed: for good."""

    names: dict[bytes, None]
    tenant: bytes
    until: float
    is_claimed: bool = False
    num_sent: int = field(default=0)


class Leases:
    """The leases of one producer.

    fingerprint: of the pages. page_bytes: of each. capacity: limit in bytes on all pages. lease_s: seconds of a lease without
    a word of its consumer. engine_id: name of this engine, which a claim may repeat.

    counts: by name, since the start. Leases: `issued`, `granted`, `released`, `expired`, `dropped`, `refused.REASON`. Pages of
    released leases: `pages_announced`, `pages_sent`, `pages_received` as consumers say, `unequal` leases whose consumer says
    another number than was sent. Other pages: `pages_unused`, sent under leases that were dropped, and `pages_lost`.
    """

    def __init__(
        self,
        fingerprint: str,
        page_bytes: int,
        capacity: int,
        lease_s: float,
        engine_id: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease_s = lease_s
        self.counts: Counter[str] = Counter()
        self._fingerprint = fingerprint
        self._page_bytes = page_bytes
        self._capacity = capacity
        self._engine_id = engine_id
        self._clock = clock
        self._key = secrets.token_bytes(KEY_BYTES)
        self._leases: dict[bytes, Lease] = {}
        self._pages: dict[bytes, LeasedPage] = {}
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def num_pages(self) -> int:
        """Return the number of pages under a lease."""
        return len(self._pages)

    # --- called by the connector ---

    def issue(self, blocks: Sequence[tuple[int, PrefixKey]], last: bytes, num_blocks: int, tenant: str) -> str | None:
        """Lease the pages of these (group, key); returns the ticket, or None where there is no room for them.

        last: digest of the prefix' last block. num_blocks: of the prefix.
        """
        names = [name_of(group, key) for group, key in blocks]
        with self._changed:
            self._expire()
            num_new = len(set(names) - set(self._pages))
            is_full = (len(self._pages) + num_new) * self._page_bytes > self._capacity
            if is_full or len(self._leases) >= MOST_LEASES:
                self.counts["refused.no_room"] += 1
                return None
            for (group, key), name in zip(blocks, names, strict=True):
                self._pages.setdefault(name, LeasedPage(group, key))
            for name in set(names):
                self._pages[name].num_leases += 1
            lease_id = secrets.token_bytes(16)
            whose = tenant_digest(tenant)
            self._leases[lease_id] = Lease(dict.fromkeys(names), whose, self._clock() + self.lease_s)
            self.counts["issued"] += 1
        until = time.time() + self.lease_s
        return written(Ticket(lease_id, self._fingerprint, last, num_blocks, whose, until), self._key)

    def lacks(self, group: int, key: PrefixKey) -> bool:
        """Whether a page is under a lease and not here."""
        held = self._pages.get(name_of(group, key)) if self._pages else None
        return held is not None and held.page is None and not held.is_lost

    def fill(self, group: int, key: PrefixKey, page: Page) -> None:
        """Take the page of a block, if it is under a lease."""
        with self._changed:
            held = self._pages.get(name_of(group, key))
            if held is not None and held.page is None:
                held.page = page
                self._changed.notify_all()

    def lose(self, group: int, key: PrefixKey) -> None:
        """Note that a page will not come, or has wrong values: whoever asks for it computes it."""
        with self._changed:
            held = self._pages.get(name_of(group, key))
            if held is not None and not held.is_lost:
                held.page, held.is_lost = None, True
                self.counts["pages_lost"] += 1
                self._changed.notify_all()

    def lose_missing(self) -> None:
        """Note that no copy that is still under way will come: the pool is another one."""
        for held in list(self._pages.values()):
            if held.page is None:
                self.lose(held.group, held.key)

    def expire(self) -> float | None:
        """End leases that nobody has claimed in time; returns the seconds until the next one may end, None without leases."""
        with self._changed:
            self._expire()
            ends = [lease.until for lease in self._leases.values() if not lease.is_claimed]
            return max(0.0, min(ends) - self._clock()) if ends else None

    def drop(self, text: str) -> None:
        """End the lease of a ticket that nobody will bring; one that has been claimed, or has ended, is left alone."""
        ticket = read(text, self._key)
        with self._changed:
            lease = None if ticket is None else self._leases.get(ticket.lease)
            if ticket is not None and lease is not None and not lease.is_claimed:
                self._end(ticket.lease, "dropped")

    def drop_all(self) -> None:
        """End all leases at once: their pages are of other weights, or their memory is needed."""
        with self._changed:
            for lease_id in list(self._leases):
                self._end(lease_id, "dropped")

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless the pages are those of the leases."""
        with self._changed:
            expected = Counter(name for lease in self._leases.values() for name in lease.names)
            held = {name: page.num_leases for name, page in self._pages.items()}
            require(held == dict(expected), "kv_leases", "pages and leases differ")

    # --- called by the threads of the listener ---

    def claim(self, text: str, tenant: str, engine_id: str = "") -> tuple[bytes, list[bytes]] | str:
        """Return the lease of a ticket and the names of its pages, once; otherwise why not, which is counted.

        tenant: whose request it is. engine_id: the engine that the request names; empty: none.
        """
        ticket = read(text, self._key)
        with self._changed:
            reason, sentence = self._refusal(ticket, tenant, engine_id)
            if ticket is None or reason:
                self.counts[f"refused.{reason}"] += 1
                return sentence
            lease = self._leases[ticket.lease]
            lease.is_claimed = True
            self.counts["granted"] += 1
            return ticket.lease, list(lease.names)

    def page(self, lease_id: bytes, name: bytes) -> LeasedPage | None:
        """Return a page of a claimed lease; None where it has none, or its copy does not come in time."""
        with self._changed:
            lease = self._leases.get(lease_id)
            held = self._pages.get(name)
            if lease is None or held is None or name not in lease.names:
                return None
            self._changed.wait_for(
                lambda: held.page is not None or held.is_lost or lease_id not in self._leases, COPY_WAIT_S
            )
            if held.page is None or lease_id not in self._leases:
                return None
            lease.num_sent += 1
            return LeasedPage(held.group, held.key, held.page)

    def end(self, lease_id: bytes, received: int | None = None) -> int:
        """End a claimed lease; returns the number of pages sent. received: as its consumer says; None: it is gone."""
        with self._changed:
            lease = self._leases.get(lease_id)
            if lease is None or received is None:
                return self._end(lease_id, "dropped")
            self.counts["pages_announced"] += len(lease.names)
            self.counts["pages_sent"] += lease.num_sent
            self.counts["pages_received"] += received
            self.counts["unequal"] += lease.num_sent != received
            return self._end(lease_id, "released")

    def _refusal(self, ticket: Ticket | None, tenant: str, engine_id: str) -> tuple[str, str]:
        """Return why a ticket is not served, as a name and as a sentence; empty: it is."""
        self._expire()
        if ticket is None or (engine_id and engine_id != self._engine_id):
            return "forged", "the ticket was not written by this engine since its start"
        lease = self._leases.get(ticket.lease)
        if lease is None and ticket.until <= time.time():
            return "stale", "the ticket's lease has ended"
        if lease is None or lease.is_claimed:
            return "spent", "the ticket has served, or its lease was dropped"
        if lease.tenant != tenant_digest(tenant):
            return "tenant", "the ticket is another tenant's"
        return "", ""

    def _expire(self) -> None:
        now = self._clock()
        over = [one for one, lease in self._leases.items() if not lease.is_claimed and lease.until <= now]
        for lease_id in over:
            self._end(lease_id, "expired")

    def _end(self, lease_id: bytes, how: str) -> int:
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return 0
        self.counts[how] += 1
        if how != "released":
            self.counts["pages_unused"] += lease.num_sent
        for name in lease.names:
            held = self._pages[name]
            held.num_leases -= 1
            if not held.num_leases:
                del self._pages[name]
        self._changed.notify_all()
        return lease.num_sent
