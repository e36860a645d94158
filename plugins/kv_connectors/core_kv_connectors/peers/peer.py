"""The end that takes pages of one other engine.

Owns: `Peer`: the names that the other engine offers, and a connection on which pages come. Never does: trust a page (it is
verified like one from a disk), or wait for longer than a limit. Called by: `PeerTier`; `may_have` from the thread that plans
steps, `fetch` from the thread that reads pages.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence

from core.api.kv_transfer import Page, PrefixKey
from core_kv_connectors.peers.handshake import Agreement, dial
from core_kv_connectors.peers.messages import (
    MAGIC,
    Found,
    Get,
    Names,
    PeerError,
    limit_waits,
    receive,
    receive_into,
    send,
)
from core_kv_connectors.peers.offer import NAME_BYTES
from core_kv_connectors.peers.pace import Pace
from core_kv_connectors.tiers.page_file import PageError, check_values, checked_header
from core_kv_connectors.tiers.rest import Rest

logger = logging.getLogger(__name__)

DIAL_S = 3.0
"""Seconds in which the other engine must answer when it is dialled."""
PAGE_S = 2.0
"""Seconds in which each piece of a page must come; then the rest of the prefix is computed."""
QUIET_S = 15.0
"""Seconds without a word after which an engine counts as gone: it says something every five."""
AHEAD = 16
"""Pages asked for before the first one has come, so that a long way costs its delay once."""
MOST_HELD = 1 << 22
"""Most names of one engine that are remembered."""
BROKEN_AFTER = 3
"""Failures in a row after which it is left alone for a while."""

Block = tuple[int, PrefixKey, bytes]
"""Group, key and name."""


class Peer:
    """One other engine. host, port: where it offers pages. take: returns memory for a page. pace: of pages that come."""

    def __init__(
        self, host: str, port: int, agreement: Agreement, take: Callable[[], Page], pace: Pace | None = None
    ) -> None:
        self._pace = pace
        self.shown = f"{host}:{port}"
        self._address = (host, port)
        self._agreement = agreement
        self._take = take
        self._names: set[bytes] = set()
        self._pages: socket.socket | None = None
        self._asked: deque[Block] = deque()
        self._closing = threading.Event()
        self._listening: socket.socket | None = None
        self._told = ""
        self._num_failures = 0
        self.rest = Rest()
        threading.Thread(target=self._follow, name="kv-peer", daemon=True).start()

    def __len__(self) -> int:
        return len(self._names)

    def may_have(self, name: bytes) -> bool:
        """Whether it offers a page, as far as it has said, and has not failed lately."""
        return name in self._names and not self.rest.remaining

    def fetch(self, wanted: Block, following: Sequence[Block]) -> Page | None:
        """Return a page, verified, or None. following: those that are likely to be asked for next, in this order."""
        try:
            if not self._asked or self._asked[0][2] != wanted[2]:
                self._hang_up()  # what comes on the old connection was asked for by another load
                self._ask(wanted)
            for block in following:
                if len(self._asked) >= AHEAD:
                    break
                if block not in self._asked and self.may_have(block[2]):
                    self._ask(block)
            page = self._next_page()
        except (PeerError, PageError, OSError) as error:
            self._failed(error)
            return None
        self._num_failures = 0
        self.rest.end()
        return page

    def forget(self, name: bytes) -> None:
        """Take a page for absent that had wrong values."""
        self._names.discard(name)

    def close(self) -> None:
        """Hang up."""
        self._closing.set()
        # The threads that read them close them; they may be in the middle of a page.
        for connection in (self._listening, self._pages):
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _ask(self, block: Block) -> None:
        if self._pages is None:
            self._pages = self._dialled("pages", PAGE_S)
        self._asked.append(block)
        send(self._pages, Get(block[2]))

    def _next_page(self) -> Page | None:
        """Return the page of the oldest question; None when the other engine no longer has it."""
        connection = self._pages
        assert connection is not None, "a question was sent"
        found = receive(connection, Found)
        group, key, name = self._asked.popleft()
        if found.name != name:
            raise PeerError("it answers another question")
        if not found.header:
            self._names.discard(name)
            return None
        header = checked_header(found.header, self._agreement.fingerprint, group, key)
        if header.nbytes != self._agreement.page_bytes:
            raise PeerError(f"it sends a page of {header.nbytes} bytes, expected {self._agreement.page_bytes}")
        page = self._take()
        receive_into(connection, page.data.cast("B"), self._pace)
        check_values(header, page, self._agreement.secret)
        return page

    def _failed(self, error: Exception) -> None:
        """Count a failure; from the third one in a row on it is left alone, for one second to a minute."""
        self._hang_up()
        self._num_failures += 1
        if self._num_failures == 1:
            logger.warning("A KV page of %s is computed here instead: %s.", self.shown, error)
        if self._num_failures >= BROKEN_AFTER:
            self.rest.begin()

    def _hang_up(self) -> None:
        self._asked.clear()
        connection, self._pages = self._pages, None
        if connection is not None:
            connection.close()

    def _dialled(self, purpose: str, silent_s: float) -> socket.socket:
        connection = socket.create_connection(self._address, DIAL_S)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            dial(connection, self._agreement, purpose)
            limit_waits(connection, receiving_s=silent_s, sending_s=silent_s)
        except BaseException:
            connection.close()
            raise
        return connection

    def _follow(self) -> None:
        """Follow what the other engine offers, for as long as this end is open."""
        pause = Rest()
        while not self._closing.is_set():
            try:
                self._listening = self._dialled("names", QUIET_S)
                self._say(f"KV pages of {self.shown} may be used ({MAGIC}).")
                with self._listening as connection:
                    while not self._closing.is_set():
                        self._hear(receive(connection, Names))
                        pause.end()
            except (PeerError, OSError) as error:
                if not self._closing.is_set():
                    self._say(f"No KV pages come from {self.shown} for now: {error}.")
            self._names = set()
            pause.begin()
            self._closing.wait(pause.remaining)

    def _hear(self, told: Names) -> None:
        if any(len(name) != NAME_BYTES for name in told.added):
            raise PeerError(f"it offers names that have other than {NAME_BYTES} bytes")
        if told.is_new:
            self._names = set()
        self._names.difference_update(told.removed)
        self._names.update(told.added)
        if len(self._names) > MOST_HELD:
            raise PeerError(f"it offers more than {MOST_HELD} pages")

    def _say(self, sentence: str) -> None:
        """Log what has changed, once."""
        if sentence != self._told:
            self._told = sentence
            logger.warning("%s", sentence) if sentence.startswith("No ") else logger.info("%s", sentence)
