"""The end that claims leased pages of a peer, for one request.

Owns: `Claim`: the thread that shows the ticket, renews the lease while the request waits, and receives the pages. Never does:
dial an address that the configuration does not name, trust a page (each is verified like one from a disk), or put a page into
a block. Called by: the connector (begins and ends it), the observer of handoffs (gives the prompt's keys).

Whatever goes wrong, the request is computed here: the claim then has fewer pages, or none.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from core.api.kv_transfer import Page, PrefixKey
from core_kv_connectors.handoff.spare import Spare
from core_kv_connectors.handoff.transport import ReceivePage, Transport
from core_kv_connectors.peers.arrangement import Arrangement, arrangement
from core_kv_connectors.peers.handshake import Agreement, dial
from core_kv_connectors.peers.messages import (
    MOST_PLACE,
    SMALL_BYTES,
    Ask,
    Found,
    Granted,
    Names,
    PeerError,
    Released,
    framed,
    limit_waits,
    receive,
    send,
)
from core_kv_connectors.peers.messages import Claim as ClaimMessage
from core_kv_connectors.peers.offer import NAME_BYTES, name_of
from core_kv_connectors.peers.pace import Pace, Streams
from core_kv_connectors.peers.peer import AHEAD, DIAL_S, PAGE_S
from core_kv_connectors.tiers.page_file import PageError, check_values, checked_header

logger = logging.getLogger(__name__)

LIMIT_S = 10.0
"""Most seconds within which the pages of a known prompt must be here; it is then computed with those that are."""

Block = tuple[int, PrefixKey]
"""Group and key of a page."""


class RefusedError(Exception):
    """Raised when the peer does not serve the ticket; the message is its sentence."""


class NoMemoryError(Exception):
    """Raised when there is no memory here for the pages, which is no fault of the peer."""


class BusyError(Exception):
    """Raised when other claims receive pages of the peer for too long, which is no fault of the peer."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a request says that its pages are. ticket: of the lease. engine_id: of the producer; empty: unsaid.

    limit_s: seconds within which they must be here, such as what computing the prompt would take; at most `LIMIT_S`.
    """

    host: str
    port: int
    ticket: str
    engine_id: str = ""
    limit_s: float = LIMIT_S

    def __str__(self) -> str:
        return f"{self.host or 'a peer without a name'}:{self.port}"


class Claim:
    """The claim of one request.

    source, tenant: of the request. take: returns memory for a page. spare: the memory that all claims may fill.
    streams: of this peer, one of which receives the pages. pace: of pages that come; None: no limit.
    transport: of their bytes; None: the connection.
    on_end: called with the outcome, on the claim's thread: `received`, `refused`, `no_memory`, `busy`, `failed` or `dropped`.

    offered: ends with the blocks among the prompt's that the peer has; the engine then answers with `want`.
    done: ends when no further page comes.
    pages: received and verified, by group and digest; empty once it is dropped.
    num_announced, num_received, num_bad: pages that the peer has, that came, and that came with wrong values.
    transfer_s: seconds that receiving them took, until all had come or the claim ended.
    problem: why it ended early.
    """

    def __init__(
        self,
        source: Source,
        tenant: str,
        agreement: Agreement,
        take: Callable[[], Page],
        spare: Spare,
        streams: Streams,
        on_end: Callable[[str, Claim], None],
        pace: Pace | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.source = source
        self.offered: Future[list[Block]] = Future()
        self.done: Future[None] = Future()
        self.pages: dict[tuple[int, bytes], tuple[PrefixKey, Page]] = {}
        self.num_announced = 0
        self.num_received = 0
        self.num_bad = 0
        self.transfer_s = 0.0
        self.problem = ""
        self._tenant = tenant
        self._limit_s = min(source.limit_s, LIMIT_S)
        self._agreement = agreement
        self._take = take
        self._spare = spare
        self._streams = streams
        self._pace = pace
        self._transport = transport or Transport()
        self._on_end = on_end
        self._connection: socket.socket | None = None
        self._page_bytes = agreement.page_bytes
        self._arrangement: Arrangement | None = None
        self._half: tuple[tuple[int, bytes], dict[int, Page]] = (-1, b""), {}
        self._known: Future[Callable[[], list[Block]]] = Future()
        self._wanted: Future[list[Block]] = Future()
        self._until = float("inf")
        self._dropped = ""
        self._num_held = 0
        self._num_strange = 0
        self._num_wanted = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="kv-claim", daemon=True).start()

    @property
    def num_missing(self) -> int:
        """Number of pages that were asked for, or were to be, and have not come."""
        return max(self._num_wanted - self.num_received, 0)

    @property
    def is_late(self) -> bool:
        """Whether the request need not wait any longer, whatever the claim's thread waits for."""
        return time.monotonic() > self._until

    @property
    def failure(self) -> str:
        """Return why the prompt does not get all that was leased for it; empty: it does. Asked once it is done or late."""
        if self._dropped or self.problem:
            return self._dropped or self.problem
        if not self.done.done():
            return f"they took longer than {self._limit_s:g} s"
        if not self.num_announced:
            return "it has leased no page"
        if self._num_strange:
            return f"{self._num_strange} of the {self.num_announced} leased pages are of another prompt"
        if self.num_received < self._num_wanted:
            return f"only {self.num_received} of {self._num_wanted} pages came"
        return ""

    @property
    def num_bytes(self) -> int:
        """Return the bytes that came, as they were sent."""
        return self.num_received * self._page_bytes

    @property
    def is_known(self) -> bool:
        """Whether the claim has been told which pages the prompt may need."""
        return self._known.done()

    def know(self, blocks: Callable[[], list[Block]]) -> None:
        """Give the function that computes all blocks of the prompt, in any order; the claim's thread calls it."""
        if not self._known.done():
            self._until = time.monotonic() + self._limit_s
            self._known.set_result(blocks)

    def want(self, blocks: list[Block]) -> None:
        """Say which of the offered blocks are to be fetched."""
        if not self._wanted.done():
            self._wanted.set_result(blocks)

    def drop(self, why: str = "the request has ended") -> None:
        """End the claim now; its pages are no longer needed. May be called at any time, and twice."""
        with self._lock:
            self._dropped = self._dropped or why
            connection = self._connection
            self._free()
        for waited in (self._known, self._wanted):
            waited.cancel()
        if connection is not None:
            # The claim's thread closes it; it may be in the middle of a page.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        outcome = "failed"
        try:
            with self._dialled() as connection:
                outcome = self._spoken(connection)
        except RefusedError as refusal:
            outcome, self.problem = "refused", str(refusal)
        except NoMemoryError as lack:
            outcome, self.problem = "no_memory", str(lack)
        except BusyError as busy:
            outcome, self.problem = "busy", str(busy)
        except (PeerError, PageError, OSError) as error:
            self.problem = str(error)
        except Exception as error:  # a defect costs this claim alone: its prompt is computed
            logger.error("A claim of KV pages failed.", exc_info=error)
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self._on_end("dropped" if self._dropped else outcome, self)
            if not self.offered.done():
                self.offered.set_result([])
            self.done.set_result(None)

    def _dialled(self) -> socket.socket:
        connection = socket.create_connection((self.source.host, self.source.port), DIAL_S)
        with self._lock:
            self._connection = connection
            if self._dropped:
                connection.close()
                raise PeerError("the request has ended")
        return connection

    def _spoken(self, connection: socket.socket) -> str:
        """Show the ticket and receive the pages; returns the outcome."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        terms = dial(connection, self._agreement, "lease")
        self._page_bytes = terms.page_bytes
        self._arrangement = arrangement(terms.shape, self._agreement.shape)
        limit_waits(connection, receiving_s=PAGE_S, sending_s=PAGE_S)
        send(connection, ClaimMessage(self.source.ticket, self._tenant, self.source.engine_id))
        granted = receive(connection, Granted, SMALL_BYTES + MOST_PLACE)
        if granted.problem:
            raise RefusedError(granted.problem[:200])
        announced: set[bytes] = set()
        count = 0
        while count < granted.count:
            names = receive(connection, Names).added
            count += len(names)
            if not names or any(len(name) != NAME_BYTES for name in names):
                raise PeerError("it announces names that are none")
            announced.update(names)
        self.num_announced = len(announced)
        renew_s = max(granted.lease_s / 3, 0.01)
        blocks = self._renewing(connection, self._known, renew_s)()
        way = self._arrangement
        if way is None:
            offered = [block for block in blocks if name_of(*block) in announced]
            num_known = len(offered)
        else:
            offered, num_known = way.offered(blocks, announced)
        self._num_strange = len(announced) - num_known
        self.offered.set_result(offered)
        wanted = self._renewing(connection, self._wanted, renew_s)
        asked = wanted if way is None else way.asked(wanted)
        self._num_wanted = len(asked)
        self._reserve(connection, len(wanted), renew_s)
        self._take_stream(connection, renew_s)
        try:
            left_s = max(self._until - time.monotonic(), 0.0)
            with self._transport.receiving(granted.place, self._pace, left_s) as receive_page:
                begin = time.monotonic()
                try:
                    self._fetch(connection, asked, receive_page)
                finally:
                    self.transfer_s = time.monotonic() - begin
        finally:
            self._streams.give_back()
        send(connection, Ask(ends=True, received=self.num_received))
        receive(connection, Released, SMALL_BYTES)
        return "received"

    def _renewing(self, connection: socket.socket, waited: Future[Any], renew_s: float) -> Any:
        """Return a result that the engine gives, and renew the lease meanwhile. Raises PeerError when the claim is dropped."""
        while True:
            try:
                return waited.result(renew_s)
            except TimeoutError:
                send(connection, Ask())
            except CancelledError:
                raise PeerError("the request has ended") from None

    def _reserve(self, connection: socket.socket, num_pages: int, renew_s: float) -> None:
        """Wait until there is memory for the pages. Raises NoMemoryError where there never is, or not in time."""
        num_bytes = num_pages * self._agreement.page_bytes
        if self._arrangement is not None and num_pages:
            num_bytes += self._arrangement.spare_bytes
        if num_bytes > self._spare.capacity:
            raise NoMemoryError(f"its pages have {num_bytes} bytes, more than kv_buffer_size {self._spare.capacity}")
        while not self._spare.take(num_bytes, min(renew_s, max(self._until - time.monotonic(), 0.0))):
            if time.monotonic() >= self._until or self._dropped:
                raise NoMemoryError(f"there is no memory for {num_bytes} bytes of its pages (kv_buffer_size)")
            send(connection, Ask())
        with self._lock:
            self._num_held = num_bytes
            if self._dropped:
                self._free()

    def _take_stream(self, connection: socket.socket, renew_s: float) -> None:
        """Wait until a stream is free, and renew the lease meanwhile. Raises BusyError when that takes too long, PeerError."""
        while not self._streams.take(min(renew_s, self._until - time.monotonic())):
            if self._dropped:
                raise PeerError("the request has ended")
            if time.monotonic() >= self._until:
                raise BusyError(f"other requests received pages of it for longer than {self._limit_s:g} s")
            send(connection, Ask())

    def _fetch(self, connection: socket.socket, wanted: Sequence[Block], receive_page: ReceivePage) -> None:
        """Receive pages, several questions ahead of the answers; a page that is gone makes the prefix shorter."""
        asked: deque[Block] = deque()
        upcoming = iter(wanted)
        while not self._dropped:
            if len(asked) <= AHEAD // 2:  # several questions in one message, which wakes the peer once
                further = list(islice(upcoming, AHEAD - len(asked)))
                if further:
                    connection.sendall(framed(*(Ask(name_of(*block)) for block in further)))
                    asked.extend(further)
            if not asked:
                break
            if time.monotonic() > self._until:
                raise PeerError(f"its pages took longer than {self._limit_s:g} s")
            self._receive_page(connection, receive_page, *asked.popleft())

    def _receive_page(self, connection: socket.socket, receive_page: ReceivePage, group: int, key: PrefixKey) -> None:
        """Receive the page of the oldest question, unless the peer no longer has it."""
        found = receive(connection, Found)
        if found.name != name_of(group, key):
            raise PeerError("it answers another question")
        if not found.header:
            return
        try:
            header = checked_header(found.header, self._agreement.fingerprint, group, key)
            way = self._arrangement
            unit = range(0) if way is None else way.unit(group)
            nbytes = self._page_bytes if way is None else way.nbytes(group)
            if header.nbytes != nbytes:
                raise PeerError(f"it sends a page of {header.nbytes} bytes, expected {nbytes}")
            page = np.empty(nbytes, np.uint8) if unit else self._take()
            receive_page(connection, found, page, max(self._until - time.monotonic(), 0.0))
            check_values(header, page, self._agreement.secret)
        except PageError:
            self.num_bad += 1
            raise
        self.num_received += 1
        if way is None or not unit:
            self._keep({group: page}, key)
        else:
            self._put_together(way, unit, group, key, page)

    def _put_together(self, way: Arrangement, unit: range, number: int, key: PrefixKey, page: Page) -> None:
        """Keep a page until all of its unit are here, and then what the engine needs of them."""
        of = unit.start, key.digest
        if self._half[0] != of:  # a state that lacks a page is dropped when the next one begins
            self._half = of, {}
        parts = self._half[1]
        parts[number] = page
        if len(parts) == len(unit):
            numbers = way.ours(unit)
            pages = [self._take() for _ in numbers]
            way.arrange(unit, [parts[each] for each in unit], pages)
            self._half = (-1, b""), {}
            self._keep(dict(zip(numbers, pages, strict=True)), key)

    def _keep(self, pages: dict[int, Page], key: PrefixKey) -> None:
        """Let the engine use pages of a block, by group, unless the claim is dropped."""
        with self._lock:
            if not self._dropped:
                self.pages |= {(group, key.digest): (key, page) for group, page in pages.items()}

    def _free(self) -> None:
        """Drop the pages, and their memory. The lock is held."""
        self.pages = {}
        self._spare.give_back(self._num_held)
        self._num_held = 0
