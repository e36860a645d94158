"""Handoffs of KV pages as a KV connector: what `tcp` is where it has a role, `nixl` and `mooncake` always.

Owns: `Handoff`: leases of this engine's blocks, claims on those of others, and the copies of blocks that leases need. Never
does: know requests (the observer of handoffs does), or share anything without a ticket. Called by: `KVConnectors`, the observer
of handoffs, the manifest of the connector `tcp`.

A leased block is copied to host memory in the steps after the lease began, or when it leaves the pool before that. So no lease
keeps a block in the pool, and no block is used again before its bytes are safe.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from core.api.config import EngineConfig
from core.api.kv_transfer import Page, PrefixKey
from core.kv.connector import BlockCache, Copy, KVConnector
from core_kv_connectors.handoff.claim import Claim, Source
from core_kv_connectors.handoff.leases import Leases
from core_kv_connectors.handoff.listener import LeaseListener
from core_kv_connectors.handoff.roles import Roles
from core_kv_connectors.handoff.spare import Spare
from core_kv_connectors.handoff.transport import Transport
from core_kv_connectors.peers.handshake import Agreement
from core_kv_connectors.peers.pace import Streams, pace_of
from core_kv_connectors.peers.page_shape import UNDIVIDED, PageShape, shared_fingerprint
from core_kv_connectors.peers.peer import BROKEN_AFTER
from core_kv_connectors.peers.tier import Address
from core_kv_connectors.tiers.page_memory import NewPage, PageMemory, ReusedMemory
from core_kv_connectors.tiers.rest import Rest

logger = logging.getLogger(__name__)

ARGUMENT: Final = "--kv-transfer-config.kv_port"
MOST_CLAIMS: Final = 256
"""Limit on claims at once, each with a thread and a connection; a request beyond it is computed."""
COPY_BYTES: Final = 8 << 20
"""Bytes of leased blocks copied with a step, or at once in idle time: a few milliseconds, for which a consumer waits."""
IDLE_PAUSE_MS: Final = 1
LeasedBlock = tuple[int | None, int, PrefixKey, Page | None]
"""Block id in the pool, or None where a connector has the page; group, key, and that page."""


class Handoff(KVConnector):
    """The handoffs of one engine.

    roles: what it is, and for whom. secret: of all engines; empty: all are on this machine. capacity: limit in bytes on leased
    pages. buffer: limit in bytes on received pages that are not in blocks yet. rate: limit in bytes a second on pages, each
    way; None: no limit. transport: makes what moves the bytes of pages, of so many bytes each; None: the connection does.
    fingerprint, page_bytes, new_page: as for `LocalTiers`.

    copy_bytes: limit on the bytes copied at once.
    sends, takes: the limits on pages. leases, listener: None for an engine that is no producer. counts: of claims, by outcome,
    and of pages, since the start.

    Raises ConfigError.
    """

    argument = "kv_transfer_config"
    places = ("handoff", "handoff")
    copy_bytes = COPY_BYTES

    def __init__(
        self,
        config: EngineConfig,
        fingerprint: Callable[[], str],
        page_bytes: int,
        new_page: NewPage | None = None,
        *,
        roles: Roles,
        secret: bytes,
        capacity: int,
        buffer: int,
        rate: int | None = None,
        transport: Callable[[int], Transport] | None = None,
    ) -> None:
        self.roles = roles
        self._config = config
        self._shape = UNDIVIDED
        self._numerics = ""
        self.counts: Counter[str] = Counter()
        self.leases: Leases | None = None
        self.listener: LeaseListener | None = None
        self._page_bytes = max(page_bytes, 1)
        self._secret = secret
        self._capacity = capacity
        self._memory = ReusedMemory(PageMemory(self._page_bytes, new_page).take, self._page_bytes, buffer)
        self._spare = Spare(buffer)
        self._transport = Transport() if transport is None else transport(self._page_bytes)
        self.sends, self.takes = pace_of(rate), pace_of(rate)
        self._streams: dict[Address, Streams] = {peer: Streams() for peer in roles.peers}
        self._claims: dict[str, Claim] = {}
        self._ready: dict[tuple[int, bytes], tuple[PrefixKey, Page]] = {}
        self._to_copy: dict[int, tuple[int, PrefixKey]] = {}
        self._rests: dict[Address, Rest] = {peer: Rest() for peer in roles.peers}
        self._lock = threading.Lock()
        self._earlier: Counter[str] = Counter()
        self._num_earlier = 0
        self._totals: tuple[int, dict[str, int]] = (0, {})
        self._open(fingerprint())

    def arrange(self, shape: PageShape, numerics: str) -> None:
        """Exchange pages with engines of another number of ranks as well. To be called once, before any request.

        shape: of this engine's pages. numerics: of its executor.
        """
        self._shape, self._numerics = shape, numerics
        self.close(0.0)
        self._open(self._fingerprint)

    @property
    def page_bytes(self) -> int:
        """Return the size of a page, in bytes."""
        return self._page_bytes

    # --- producer ---

    def lease(self, blocks: Sequence[LeasedBlock], last: bytes, num_blocks: int, tenant: str) -> str | None:
        """Lease the blocks of a prefix; returns the ticket, or None without room. Arguments: as for `Leases.issue`."""
        if self.leases is None:
            return None
        ticket = self.leases.issue([(group, key) for _, group, key, _ in blocks], last, num_blocks, tenant)
        for block_id, group, key, page in blocks if ticket is not None else ():
            if page is not None:
                self.leases.fill(group, key, page)
            elif block_id is not None and self.leases.lacks(group, key):
                self._to_copy[block_id] = (group, key)
        return ticket

    def drop_lease(self, ticket: str) -> None:
        """End a lease whose ticket nobody will bring. Its copies that have not begun are not made."""
        if self.leases is not None:
            self.leases.drop(ticket)

    def copy_some(self, cache: BlockCache) -> bool:
        """Have the next step, or `cache.copy_now`, return some leased blocks; False when there are none to copy."""
        if not self._to_copy:
            return False
        assert self.leases is not None, "there are leased blocks"
        for block_id in list(self._to_copy)[: max(1, self.copy_bytes // self._page_bytes)]:
            group, key = self._to_copy.pop(block_id)
            if self.leases.lacks(group, key):
                cache.save(block_id, group, key, self)
        return True

    # --- consumer ---

    def claim(self, name: str, source: Source, tenant: str) -> str:
        """Begin the claim of a request; returns why there is none: empty, `unknown_peer`, `resting` or `busy`."""
        rest = self._rests.get((source.host, source.port))
        if rest is None:
            return self._counted("unknown_peer")
        if rest.num_failures >= BROKEN_AFTER and rest.remaining:
            return self._counted("resting")
        if len(self._claims) >= MOST_CLAIMS:
            return self._counted("busy")
        self.counts["claimed"] += 1
        agreement = self._agreement()
        streams = self._streams[source.host, source.port]
        common = (self._memory.take, self._spare, streams, self._ended, self.takes, self._transport)
        self._claims[name] = Claim(source, tenant, agreement, *common)
        return ""

    def claim_of(self, name: str) -> Claim | None:
        """Return the claim of a request, or None."""
        return self._claims.get(name)

    def claimed(self) -> list[str]:
        """Return the names of the requests that have a claim."""
        return list(self._claims)

    def collect(self, name: str) -> None:
        """Let look-ups find the pages that a claim has received."""
        claim = self._claims.get(name)
        if claim is not None:
            self._ready.update(claim.pages)

    def end_claim(self, name: str) -> None:
        """Drop the claim of a request and its pages: they are in blocks, or no longer needed. Unknown names are ignored."""
        claim = self._claims.pop(name, None)
        if claim is None:
            return
        for place in claim.pages:
            self._ready.pop(place, None)
        claim.drop()
        for other in self._claims.values():  # two requests may have received the same page
            if other.done.done():
                self._ready.update(other.pages)

    def totals(self) -> dict[str, int]:
        """Return the counts since the start: of leases as `lease.NAME`, of claims as `claim.NAME`.

        Every step reports them, so that they are put together only where one has changed; callers must not change them.
        """
        now = {} if self.leases is None else dict(self.leases.counts)  # one call, while other threads count
        claims = dict(self.counts)
        total = sum(now.values()) + sum(claims.values()) + self._num_earlier
        if total != self._totals[0]:  # counts only grow
            leases = Counter(self._earlier)
            leases.update(now)
            self._totals = (
                total,
                {
                    **{f"claim.{name}": number for name, number in claims.items()},
                    **{f"lease.{name}": number for name, number in leases.items()},
                },
            )
        return self._totals[1]

    def report_counts(self) -> Mapping[str, int]:
        """Return the totals, and what there is now: `leases`, `leased_pages`, `claims` and `buffered_bytes`."""
        found = {"claims": len(self._claims), "buffered_bytes": self._spare.num_taken}
        if self.leases is not None:
            self.leases.expire()
            found |= {"leases": len(self.leases), "leased_pages": self.leases.num_pages}
        return {**self.totals(), **found}

    # --- KVConnector ---

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether a claim has received the page of a block."""
        return self.get(group, key) is not None

    def get(self, group: int, key: PrefixKey) -> Page | None:
        """Return a page that a claim has received, or None."""
        found = self._ready.get((group, key.digest))
        return found[1] if found is not None and found[0].payload == key.payload else None

    def wants(self, group: int, key: PrefixKey) -> bool:
        """Whether a block is under a lease and its page is not here."""
        return self.leases is not None and self.leases.lacks(group, key)

    def put(self, group: int, key: PrefixKey, page: Page, *, evicted: bool) -> None:
        """Take the page of a leased block."""
        if self.leases is not None:
            self.leases.fill(group, key, page)

    def lost(self, group: int, key: PrefixKey) -> None:
        """Note that a leased block has no page: whoever asks for it computes it."""
        if self.leases is not None:
            self.leases.lose(group, key)

    def discard(self, group: int, key: PrefixKey) -> None:
        """Neither send nor use a page with wrong values."""
        self._ready.pop((group, key.digest), None)
        self.lost(group, key)

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """Do not copy a block that has left the pool: if it is valid, `wants` is asked for its page next."""
        if self._to_copy.pop(block_id, None) is not None and not valid:
            self.lost(group, key)

    def after_step(self, cache: BlockCache) -> None:
        """Copy some leased blocks with the next step."""
        if self._to_copy:
            self.copy_some(cache)

    def save_idle(self, cache: BlockCache, copy: Copy) -> int | None:
        """Copy leased blocks, and end leases whose time is over; see `KVConnector.save_idle`."""
        has_more = self.copy_some(cache)
        if not cache.copy_now(copy):
            return None
        if has_more:
            return IDLE_PAUSE_MS
        next_end = None if self.leases is None else self.leases.expire()
        return None if next_end is None else int(next_end * 1000) + 1

    def cleared(self) -> None:
        """Drop leases and received pages: the user has reset the prefix cache."""
        self._to_copy.clear()
        self._drop_claims()
        if self.leases is not None:
            self.leases.drop_all()

    def pool_replaced(self) -> None:
        """Note that no further copy arrives."""
        self._to_copy.clear()
        if self.leases is not None:
            self.leases.lose_missing()

    def drop_memory(self) -> None:
        """Drop leases and received pages, and the memory that is kept for others."""
        self.cleared()
        self._memory.drop()

    def use_weights(self, config: EngineConfig, fingerprint: Callable[[], str]) -> None:
        """Begin again with other weights: pages and tickets of the earlier ones are worth nothing."""
        self.close(0.0)
        self._config = config
        self._open(fingerprint())

    def close(self, timeout_s: float) -> None:
        """Free the port, end leases and claims."""
        self.cleared()
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        if self.leases is not None:
            self._earlier.update(self.leases.counts)
            self._num_earlier = self._earlier.total()
            self.leases = None

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless pages and leases agree."""
        if self.leases is not None:
            self.leases.check_integrity()

    def _open(self, fingerprint: str) -> None:
        if self._shape.groups:
            fingerprint = shared_fingerprint(self._config, self._numerics)
        self._fingerprint = fingerprint
        place = self.roles.listen
        if place is None:
            return
        roles = self.roles
        self.leases = Leases(fingerprint, self._page_bytes, self._capacity, roles.lease_s, roles.engine_id)
        agreement = self._agreement()
        self.listener = LeaseListener(*place, agreement, self.leases, ARGUMENT, self.sends, self._transport)

    def _agreement(self) -> Agreement:
        """Return what this engine has in common with others."""
        return Agreement(self._secret, self._fingerprint, self._page_bytes, self._transport.name, self._shape)

    def _drop_claims(self) -> None:
        """Drop all claims; their requests are computed."""
        self._ready.clear()
        for claim in self._claims.values():
            claim.drop("the prefix cache was reset, or the weights have changed")

    def _counted(self, reason: str) -> str:
        self.counts[reason] += 1
        return reason

    def _ended(self, outcome: str, claim: Claim) -> None:
        """Count a claim that has ended. Called on its thread."""
        address = (claim.source.host, claim.source.port)
        with self._lock:
            self.counts[outcome] += 1
            if outcome == "received":
                self.counts["pages_announced"] += claim.num_announced
                self.counts["pages_received"] += claim.num_received
            else:
                self.counts["pages_unused"] += claim.num_received
            self.counts["pages_bad"] += claim.num_bad
            if outcome != "dropped":
                self.counts["pages_missing"] += claim.num_missing
            rest = self._rests[address]
            if outcome == "failed":
                rest.begin()
                if rest.num_failures in (1, BROKEN_AFTER):
                    logger.warning("Pages of %s:%d are computed here instead: %s.", *address, claim.problem)
            elif outcome != "dropped":
                rest.end()
            if outcome == "refused":
                logger.info("A ticket for %s:%d is not served: %s.", *address, claim.problem)
