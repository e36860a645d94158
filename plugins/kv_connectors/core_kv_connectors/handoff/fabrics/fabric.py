"""Pages that a library of others moves from memory to memory.

Owns: the contract `Fabric` of such a library, the registered memory in which pages lie while they are moved, and
`FabricTransport`. Never does: import a library (the fabrics beside this module do), or believe that a page has come: its
checksum is verified behind every transport. Called by: both ends of a lease.

The producer copies a page into a slot of its registered memory and tells the slot's address in place of the bytes; the
consumer has the library read it from there into a slot of its own. A connection has a ring of slots, as many as a consumer
asks pages ahead: it asks for the next page only once it has the oldest one, so the slot that comes round is no longer read.
No other memory is registered, so whoever reaches the library reads no more than the pages that are on their way.

A library may still write what it was late with, after its read was given up. So the ring of such a read is the last to be used
again: a page of another claim that came there could have a wrong checksum, and would be computed.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

import numpy as np

from core.api.kv_transfer import Page
from core_kv_connectors.handoff.transport import ReceivePage, SendPage, Transport
from core_kv_connectors.peers.messages import Found, PeerError, send
from core_kv_connectors.peers.pace import PIECE_BYTES, Pace
from core_kv_connectors.peers.peer import AHEAD

STAGING_BYTES: Final = 256 << 20
FEWEST_RINGS, MOST_RINGS = 4, 32
RING_S: Final = 1.5
"""Seconds for which a question for a page waits for a ring: less than its peer waits for an answer."""


class Fabric(Protocol):
    """A library. name: of the transport. place: what the other end must know to read registered memory."""

    name: str
    place: bytes

    def register(self, address: int, num_bytes: int) -> None:
        """Let the other end read memory, and this end write what it reads. Called once, before anybody asks for `place`."""

    def read(self, place: bytes, source: int, target: int, num_bytes: int, limit_s: float) -> None:
        """Copy memory of the other end to this one. Raises PeerError, also when it takes longer than `limit_s` seconds.

        Any error may leave a read behind that still writes to `target`.
        """


class FabricTransport(Transport):
    """Pages that a fabric moves. page_bytes: of a page, in all ranks of this engine."""

    def __init__(self, fabric: Fabric, page_bytes: int) -> None:
        num_rings = min(max(STAGING_BYTES // (AHEAD * page_bytes), FEWEST_RINGS), MOST_RINGS)
        self._memory = np.zeros((num_rings, AHEAD, page_bytes), np.uint8)
        self._fabric = fabric
        self._free = deque(range(num_rings))
        self._changed = threading.Condition()
        fabric.register(self._memory.ctypes.data, self._memory.nbytes)
        self.name = fabric.name
        self.place = fabric.place

    def sending(self, pace: Pace | None) -> AbstractContextManager[SendPage]:
        """See `Transport`. A page for which no ring is free is told to be gone, and computed by the consumer."""
        return self._sending()

    def receiving(self, place: bytes, pace: Pace | None, limit_s: float) -> AbstractContextManager[ReceivePage]:
        """See `Transport`. The consumer keeps the pace, as the producer's library asks nobody."""
        return self._receiving(place, pace, limit_s)

    @contextmanager
    def _sending(self) -> Iterator[SendPage]:
        ring: int | None = None
        count = 0

        def send_page(connection: socket.socket, found: Found, page: memoryview) -> None:
            nonlocal ring, count
            ring = self._take(RING_S) if ring is None else ring
            if ring is None:
                send(connection, Found(found.name))
                return
            slot = self._memory[ring, count % AHEAD, : page.nbytes]
            count += 1
            slot[:] = np.frombuffer(page, np.uint8)
            send(connection, Found(found.name, found.header, slot.ctypes.data))

        try:
            yield send_page
        finally:
            self._give_back(ring)

    @contextmanager
    def _receiving(self, place: bytes, pace: Pace | None, limit_s: float) -> Iterator[ReceivePage]:
        ring = self._take(limit_s)
        if ring is None:
            raise PeerError(f"no registered memory was free here within {limit_s:g} s")
        room = self._memory[ring].reshape(-1)
        has_failed = False

        def receive_page(connection: socket.socket, found: Found, page: Page, limit_s: float) -> None:
            nonlocal has_failed
            slot = room[: page.nbytes]
            if len(slot) < page.nbytes:  # an engine with other ranks may send more of a page than one here has
                raise PeerError(f"its pages have {page.nbytes} bytes, more than {len(slot)} of registered memory here")
            if pace is not None:
                for start in range(0, page.nbytes, PIECE_BYTES):
                    pace.take(min(PIECE_BYTES, page.nbytes - start))
            has_failed = True
            self._fabric.read(place, found.address, slot.ctypes.data, page.nbytes, limit_s)
            has_failed = False
            page[:] = slot

        try:
            yield receive_page
        finally:
            self._give_back(ring, has_failed=has_failed)

    def _take(self, timeout_s: float) -> int | None:
        """Return a free ring, or None after so many seconds."""
        with self._changed:
            return self._free.pop() if self._changed.wait_for(lambda: bool(self._free), timeout_s) else None

    def _give_back(self, ring: int | None, *, has_failed: bool = False) -> None:
        """Return a ring. has_failed: whether a read was given up that may still write to it."""
        if ring is not None:
            with self._changed:
                self._free.appendleft(ring) if has_failed else self._free.append(ring)
                self._changed.notify()
