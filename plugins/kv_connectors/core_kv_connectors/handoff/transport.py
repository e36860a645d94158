"""How the bytes of leased pages get from a producer to its consumer.

Owns: the contract `Transport`, and the one that needs nothing: pages behind their headers, on the connection itself. Never
does: decide who may have a page, or trust one: headers and checksums are the same however the bytes come. Called by: both
ends of a lease.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from core.api.kv_transfer import Page
from core_kv_connectors.peers.handshake import TCP
from core_kv_connectors.peers.messages import Found, receive_into, send
from core_kv_connectors.peers.pace import Pace

SendPage = Callable[[socket.socket, Found, memoryview], None]
"""Answers a question with a page. The arguments: the connection, the answer, the page's bytes."""
ReceivePage = Callable[[socket.socket, Found, Page, float], None]
"""Fills a page. The arguments: the connection, the answer, the page, the seconds within which it must be there."""


class Transport:
    """Pages on the connection itself.

    name: both ends must have the same. place: what the consumer must know of the producer's memory; at most `MOST_PLACE` bytes.
    """

    name = TCP
    place = b""

    def sending(self, pace: Pace | None) -> AbstractContextManager[SendPage]:
        """Return what sends the pages of one connection. pace: their limit; None: none. What it raises ends the connection."""
        return _sending(pace)

    def receiving(self, place: bytes, pace: Pace | None, limit_s: float) -> AbstractContextManager[ReceivePage]:
        """Return what receives the pages of one connection. place: of the producer. limit_s: to wait for memory.

        Raises PeerError and OSError, on entry and for each page.
        """
        return _receiving(pace)


@contextmanager
def _sending(pace: Pace | None) -> Iterator[SendPage]:
    def send_page(connection: socket.socket, found: Found, page: memoryview) -> None:
        send(connection, found, page, pace)

    yield send_page


@contextmanager
def _receiving(pace: Pace | None) -> Iterator[ReceivePage]:
    def receive_page(connection: socket.socket, found: Found, page: Page, limit_s: float) -> None:
        receive_into(connection, page.data.cast("B"), pace)

    yield receive_page
