"""Pages of other engines, in the place of a disk.

Owns: `PeerTier`: what this engine offers, whom it asks, and which of its own blocks it has offered. Never does: decide what is
saved (`KVTiers` and `BlockSaver` do, as for a disk), or wait for the network on the thread that plans steps. Called by:
`KVTiers`.

Where a disk tier writes a page, this one offers it to others; where a disk tier looks for a file, this one looks whether an
engine has said that it offers the page.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence, Set

from core.api.kv_load import KVLoad
from core.api.kv_transfer import Page, PrefixKey
from core_kv_connectors.peers.handshake import Agreement
from core_kv_connectors.peers.listener import OfferListener
from core_kv_connectors.peers.offer import Offer, name_of
from core_kv_connectors.peers.pace import pace_of
from core_kv_connectors.peers.peer import AHEAD, Block, Peer
from core_kv_connectors.tiers.faults import Faults
from core_kv_connectors.tiers.page_memory import NewPage, PageMemory

Address = tuple[str, int]
ARGUMENT = "--kv-connectors-config.tcp.listen"


class PeerTier:
    """Other engines as slow storage.

    agreement: what all of them must have in common. capacity: limit in bytes on the pages that are offered.
    listen: where to offer pages; None: nowhere, so that none are kept. peers: engines to ask, in this order.
    new_page: where pages are read to; None: new memory. rate: limit in bytes a second on the pages that it sends, and as many
    that come; None: no limit.

    Raises ConfigError when `listen` cannot be used.
    """

    num_dropped = 0
    write_byte_s = 0.0
    is_ready = True
    resting_s = 0.0
    may_be_read = True
    is_late = False
    late_s = 0.0

    def __init__(
        self,
        agreement: Agreement,
        capacity: int,
        listen: Address | None,
        peers: Sequence[Address],
        new_page: NewPage | None = None,
        rate: int | None = None,
    ) -> None:
        self.offer = Offer(capacity if listen is not None else 0)
        self.listener = (
            None if listen is None else OfferListener(*listen, agreement, self.offer, ARGUMENT, pace_of(rate))
        )
        memory = PageMemory(agreement.page_bytes, new_page)
        taken = pace_of(rate)
        self.peers = [Peer(*address, agreement, memory.take, taken) for address in peers]
        self._bad: set[bytes] = set()
        self._faults = Faults()
        self._ahead: list[Block] = []

    def leave_alone(self) -> None:
        """Do nothing: an engine that does not answer is left alone by itself, the others go on."""

    def find(self, group: int, key: PrefixKey) -> Page | None:
        """Return a page that this engine offers, or None."""
        found = self.offer.get(name_of(group, key))
        return None if found is None else found.page

    def holds(self, group: int, key: PrefixKey) -> bool:
        """Whether the page is offered, or need not be since nobody may ask for it."""
        return self.listener is None or self.find(group, key) is not None

    def may_have(self, group: int, key: PrefixKey) -> bool:
        """Whether any other engine has said that it offers the page."""
        return self.contains(group, key)

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether any other engine has said that it offers the page."""
        name = name_of(group, key)
        return name not in self._bad and any(peer.may_have(name) for peer in self.peers)

    def expect(self, load: KVLoad) -> None:
        """Note which pages will be read next, so that they are asked for ahead."""
        num_blocks = load.needs.longest(
            len(load.keys), lambda group, index: load.has(group, index) or self.contains(group, load.keys[index])
        )
        self._ahead = []
        for group, index in load.needs.entries(num_blocks):
            if not load.has(group, index):
                key = load.keys[index]
                self._ahead.append((group, key, name_of(group, key)))
        self._ahead.reverse()  # the next one is popped

    def read(self, group: int, key: PrefixKey) -> Page | None:
        """Return the page of a block from the first engine that has it, verified, or None."""
        name = name_of(group, key)
        while self._ahead and self._ahead[-1][2] != name:
            self._ahead.pop()
        following = self._ahead[-2 : -2 - AHEAD : -1]
        for peer in self.peers:
            if name not in self._bad and peer.may_have(name):
                page = peer.fetch((group, key, name), following)
                if page is not None:
                    self._faults.forget(key)  # it came late before
                    return page
        return None

    def prepare(self) -> Iterator[None]:
        """Make nothing ready: it is not known how many pages come."""
        return iter(())

    def write(self, group: int, key: PrefixKey, page: Page) -> None:
        """Offer a page."""
        if self.listener is not None:
            self._bad.discard(name_of(group, key))
            self.offer.put(group, key, page)

    def pages(self) -> Iterator[tuple[int, bytes]]:
        """List the pages (group, digest) that this engine offers; those of others have names that say neither."""
        return iter(self.offer.listed())

    def missing(self, key: PrefixKey) -> str:
        """Return why a page did not come that another engine has offered; empty: unknown."""
        return self._faults.cause(key)

    def late(self, load: KVLoad) -> None:
        """Remember that the pages of a load came too late; see `Faults`."""
        self._faults.late(load)

    def hold(self, owner: Hashable, names: Set[str], share: float, seconds: float) -> bool:
        """Return False: offered pages are copies for others, which no pin needs."""
        return False

    def is_held(self, group: int, key: PrefixKey) -> bool:
        """Return False, as `hold` does."""
        return False

    def discard(self, group: int, key: PrefixKey) -> None:
        """Neither offer nor take a page that had wrong values, until it has been computed here."""
        name = name_of(group, key)
        self._bad.add(name)
        self.offer.discard(name)
        for peer in self.peers:
            peer.forget(name)

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Whether all pages are offered."""
        return True

    def clear(self) -> None:
        """Offer nothing any more. Pages of others remain theirs."""
        self.offer.clear()

    def close(self, timeout_s: float = 10.0) -> None:
        """Free the port and hang up."""
        if self.listener is not None:
            self.listener.close()
        for peer in self.peers:
            peer.close()
