"""The end that hands leased pages to the peer that claims them.

Owns: `LeaseListener`: one connection a claim, and the answers on it. Never does: decide who may have a page (`Leases` does).
Called by: the connector.

A claimed lease lasts as long as its connection and the words on it: the end of either ends the lease.
"""

from __future__ import annotations

import socket

import numpy as np

from core.api.kv_transfer import Page, PrefixKey
from core_kv_connectors.handoff.leases import Leases
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
    Released,
    receive,
    receive_into,
    send,
)
from core_kv_connectors.tiers.page_file import PageError, check_values, checked_header, page_parts

TRIAL = PrefixKey(b"core kv check", b"")
"""Key of the trial page, which no block of a prompt can have: its digest is too short."""
SEND, TAKE = b"send", b"take"
CLAIM_BYTES = 1 << 13
"""Largest claim: a ticket and two names."""


class LeaseListener(Listener):
    """Hands out the pages of leases. trial: the page that is sent to `core kv check`. Others as for `Listener`."""

    purposes = ("lease", "check")

    def __init__(self, host: str, port: int, agreement: Agreement, leases: Leases, trial: Page, argument: str) -> None:
        self._leases = leases
        self._trial = trial
        super().__init__(host, port, agreement, argument)

    def _speak(self, purpose: str, connection: socket.socket) -> None:
        if purpose == "check":
            self._try_out(connection)
            return
        claim = receive(connection, Claim, CLAIM_BYTES)
        leases = self._leases
        granted = leases.claim(claim.ticket, claim.tenant, claim.engine_id)
        if isinstance(granted, str):
            send(connection, Granted(problem=granted))
            return
        lease, names = granted
        received: int | None = None
        try:
            send(connection, Granted(len(names), leases.lease_s))
            for start in range(0, len(names), MOST_NAMES):
                send(connection, Names(names[start : start + MOST_NAMES]))
            received = self._serve_pages(connection, lease)
        finally:
            sent = leases.end(lease, received)
        send(connection, Released(sent))

    def _serve_pages(self, connection: socket.socket, lease: bytes) -> int:
        """Answer questions until the lease is released; returns the pages that the peer has received, as it says."""
        while True:
            connection.settimeout(self._leases.lease_s)  # each word renews the lease, and nothing else does
            ask = receive(connection, Ask, SMALL_BYTES)
            connection.settimeout(SILENT_S)
            if ask.ends:
                return ask.received
            if ask.name:
                self._send_page(connection, lease, ask.name)

    def _send_page(self, connection: socket.socket, lease: bytes, name: bytes) -> None:
        held = self._leases.page(lease, name)
        if held is None or held.page is None:
            send(connection, Found(name))
            return
        agreement = self._agreement
        header, page = page_parts(agreement.fingerprint, held.group, held.key, held.page, agreement.secret)
        send(connection, Found(name, header[4:]), page)

    def _try_out(self, connection: socket.socket) -> None:
        """Answer `core kv check`: repeat a word, send the trial page, or verify a page and send it back."""
        agreement = self._agreement
        page = np.empty_like(self._trial)
        for _ in range(MOST_NAMES):
            ask = receive(connection, Ask, SMALL_BYTES)
            if ask.ends:
                return
            header = b""
            if ask.name == SEND:
                parts = page_parts(agreement.fingerprint, 0, TRIAL, self._trial, agreement.secret)
                page[:] = self._trial
                header = parts[0][4:]
            elif ask.name == TAKE:
                found = receive(connection, Found)
                receive_into(connection, page.data)
                if is_trial(agreement, found.header, page):
                    header = found.header
            send(connection, Found(ask.name, header), page.data if header else None)


def is_trial(agreement: Agreement, header: bytes, page: Page) -> bool:
    """Whether a page is a whole trial page of an engine that agrees."""
    try:
        check_values(checked_header(header, agreement.fingerprint, 0, TRIAL), page, agreement.secret)
    except PageError:
        return False
    return True
