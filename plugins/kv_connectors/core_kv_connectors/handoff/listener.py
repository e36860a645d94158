"""The end that hands leased pages to the peer that claims them.

Owns: `LeaseListener`: one connection a claim, and the answers on it. Never does: decide who may have a page (`Leases` does).
Called by: the connector.

A claimed lease lasts as long as its connection and the words on it: the end of either ends the lease.
"""

from __future__ import annotations

import socket

from core_kv_connectors.handoff.leases import Leases
from core_kv_connectors.handoff.transport import SendPage, Transport
from core_kv_connectors.peers.arrangement import SentPages
from core_kv_connectors.peers.handshake import Agreement
from core_kv_connectors.peers.listener import SILENT_S, Listener
from core_kv_connectors.peers.messages import (
    MOST_NAMES,
    SMALL_BYTES,
    Ask,
    Claim,
    Found,
    Granted,
    Names,
    Reader,
    Released,
    limit_waits,
    receive,
    send,
)
from core_kv_connectors.peers.pace import Pace
from core_kv_connectors.tiers.page_file import page_parts

CLAIM_BYTES = 1 << 13
"""Largest claim: a ticket and two names."""


class LeaseListener(Listener):
    """Hands out the pages of leases. transport: of their bytes; None: the connection. Other arguments: as for `Listener`."""

    purposes = ("lease",)

    def __init__(
        self,
        host: str,
        port: int,
        agreement: Agreement,
        leases: Leases,
        argument: str,
        pace: Pace | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._leases = leases
        self._transport = transport or Transport()
        self._sent = SentPages(agreement.shape)
        super().__init__(host, port, agreement, argument, pace)

    def _speak(self, purpose: str, connection: socket.socket) -> None:
        claim = receive(connection, Claim, CLAIM_BYTES)
        leases = self._leases
        granted = leases.claim(claim.ticket, claim.tenant, claim.engine_id)
        if isinstance(granted, str):
            send(connection, Granted(problem=granted))
            return
        lease, names = granted
        received: int | None = None
        try:
            send(connection, Granted(len(names), leases.lease_s, place=self._transport.place))
            for start in range(0, len(names), MOST_NAMES):
                send(connection, Names(names[start : start + MOST_NAMES]))
            with self._transport.sending(self._pace) as send_page:
                received = self._serve_pages(connection, lease, send_page)
        finally:
            sent = leases.end(lease, received)
        send(connection, Released(sent))

    def _serve_pages(self, connection: socket.socket, lease: bytes, send_page: SendPage) -> int:
        """Answer questions until the lease is released; returns the pages that the peer has received, as it says."""
        # Each word renews the lease, and nothing else does.
        limit_waits(connection, receiving_s=self._leases.lease_s, sending_s=SILENT_S)
        asks = Reader(connection, SMALL_BYTES)
        while True:
            ask = asks.receive(Ask)
            if ask.ends:
                return ask.received
            if ask.name:
                self._send_page(connection, lease, ask.name, send_page)

    def _send_page(self, connection: socket.socket, lease: bytes, name: bytes, send_page: SendPage) -> None:
        held = self._leases.page(lease, name)
        if held is None or held.page is None:
            send(connection, Found(name))
            return
        agreement = self._agreement
        sent = self._sent.of(held.group, held.page)
        header, page = page_parts(agreement.fingerprint, held.group, held.key, sent, agreement.secret)
        send_page(connection, Found(name, header[4:]), page)
