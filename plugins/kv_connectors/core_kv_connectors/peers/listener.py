"""The end that offers pages to other engines.

Owns: `Listener`: the port, a thread for each connection, and their limits; `OfferListener`, which tells and sends what is
offered to all. Never does: choose what is offered, or speak to a peer that has not agreed. Called by: `PeerTier`, and the
listener of leases, which extends `Listener`.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from abc import ABC, abstractmethod
from typing import ClassVar

from core.api.errors import ConfigError
from core_kv_connectors.peers.handshake import CHECK, Agreement, answer
from core_kv_connectors.peers.messages import (
    LONGEST_LEASE_S,
    MOST_NAMES,
    SMALL_BYTES,
    Found,
    Get,
    Names,
    PeerError,
    Reader,
    limit_waits,
    send,
)
from core_kv_connectors.peers.offer import Offer
from core_kv_connectors.peers.pace import Pace
from core_kv_connectors.peers.trial import answer_trial
from core_kv_connectors.tiers.page_file import page_parts

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 256
"""Connections at once; further ones are closed."""
AGREE_S = 5.0
"""Seconds in which an end that connects must have agreed."""
SILENT_S = 60.0
"""Seconds in which the other end must take what is sent to it, or it is hung up on."""
ALIVE_S = 5.0
"""Seconds after which a message without names says that this end is alive."""
OPEN_TRIES = 20
OPEN_PAUSE_S = 0.1


class Listener(ABC):
    """Answers peers at a port; what it says to those that have agreed, subclasses say.

    host, port: where; port 0: any free one. argument: that named them, for messages. pace: of the pages it sends.

    address: as others dial it. purposes: of connections that it serves, besides trials.

    Raises ConfigError when the port cannot be used.
    """

    purposes: ClassVar[tuple[str, ...]]

    def __init__(self, host: str, port: int, agreement: Agreement, argument: str, pace: Pace | None = None) -> None:
        self._agreement = agreement
        self._pace = pace
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._socket = _bound(host, port, argument)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        threading.Thread(target=self._accept, name="kv-listener", daemon=True).start()

    def close(self) -> None:
        """Free the port and hang up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._socket.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            _hang_up(connection)

    def _accept(self) -> None:
        while True:
            try:
                connection, whom = self._socket.accept()
            except OSError:
                return  # closed
            with self._lock:
                is_full = len(self._connections) >= MOST_CONNECTIONS
                if not is_full:
                    self._connections.add(connection)
            if is_full:
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection, whom[0]), name="kv-offer", daemon=True).start()

    def _serve(self, connection: socket.socket, whom: str) -> None:
        """Serve one connection until it ends. Whatever the other end does costs this connection alone."""
        try:
            connection.settimeout(SILENT_S)
            # A limit for all of the agreement: one for each read would let a stranger stay, a byte at a time.
            limit = threading.Timer(AGREE_S, _hang_up, [connection])
            limit.start()
            try:
                purpose = answer(connection, self._agreement, (*self.purposes, CHECK))
            finally:
                limit.cancel()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if purpose == CHECK:
                answer_trial(connection, self._agreement)
            else:
                self._speak(purpose, connection)
        except PeerError as error:
            logger.info("KV pages are not offered to %s: %s.", whom, error)
        except OSError as error:
            logger.debug("The connection of %s for KV pages has ended: %s.", whom, error)
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    @abstractmethod
    def _speak(self, purpose: str, connection: socket.socket) -> None:
        """Serve a connection that has agreed, until it ends. Raises PeerError, OSError."""


class OfferListener(Listener):
    """Offers pages to all peers. Arguments: as for `Listener`. num_sent: pages sent since the start."""

    purposes = ("names", "pages")

    def __init__(
        self, host: str, port: int, agreement: Agreement, offer: Offer, argument: str, pace: Pace | None = None
    ) -> None:
        self._offer = offer
        self.num_sent = 0
        super().__init__(host, port, agreement, argument, pace)

    def close(self) -> None:
        """Free the port, wake the connections that wait for changes, and hang up."""
        self._offer.close()
        super().close()

    def _speak(self, purpose: str, connection: socket.socket) -> None:
        if purpose == "names":
            self._tell_names(connection)
        else:
            self._send_pages(connection)

    def _tell_names(self, connection: socket.socket) -> None:
        since: int | None = None
        while (found := self._offer.changes(since, ALIVE_S)) is not None:
            since, added, removed, is_new = found
            send(connection, Names(added[:MOST_NAMES], removed, is_new))
            for start in range(MOST_NAMES, len(added), MOST_NAMES):
                send(connection, Names(added[start : start + MOST_NAMES]))

    def _send_pages(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A peer may ask for nothing for hours; that it is gone, the system finds out.
        limit_waits(connection, receiving_s=LONGEST_LEASE_S, sending_s=SILENT_S)
        questions = Reader(connection, SMALL_BYTES)
        while True:
            name = questions.receive(Get).name
            found = self._offer.get(name)
            if found is None:
                send(connection, Found(name))
                continue
            agreement = self._agreement
            # Here rather than when it was offered: a MAC of a page takes as long as a small step.
            header, page = page_parts(agreement.fingerprint, found.group, found.key, found.page, agreement.secret)
            send(connection, Found(name, header[4:]), page, self._pace)
            self.num_sent += 1


def _hang_up(connection: socket.socket) -> None:
    """Wake the thread of a connection, which then closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _bound(host: str, port: int, argument: str) -> socket.socket:
    """Return a socket that listens. An engine that has just ended may hold the port for a moment, so it is tried again."""
    shown = f"{argument} {host}:{port}"
    for number in range(OPEN_TRIES):
        try:
            return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            if number + 1 == OPEN_TRIES:
                raise ConfigError([f"{shown}: cannot be listened at ({error.strerror or error})."]) from error
            time.sleep(OPEN_PAUSE_S)
    raise AssertionError("the loop returns or raises")
