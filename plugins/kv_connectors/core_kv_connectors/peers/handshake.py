"""The agreement of two engines before they exchange pages.

Owns: the proof that both have the secret, and the comparison of what they compute. Never does: exchange pages. Called by: both
ends, at the start of each connection.

Who listens proves that it has the secret only after the other end has, so that strangers learn nothing. Without a secret the
proof is that of an empty one: engines of one machine.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from core_kv_connectors.peers.messages import MAGIC, SMALL_BYTES, Hello, PeerError, Terms, receive, send
from core_kv_connectors.peers.page_shape import UNDIVIDED, PageShape

TCP = "tcp"
"""The transport of pages on the connection itself."""
CHECK = "check"
"""Purpose of a connection that compares terms: it need not agree on them, and gets no page of a prompt."""
NONCE_BYTES = 32
WHY_WEIGHTS = (
    "of other weights, numerics, plugins or layout; sizes and times of weight files count, so keep them in copies"
)


@dataclass(frozen=True)
class Agreement:
    """What both ends must have in common.

    secret: 32 bytes from the key file; empty: none. fingerprint: 32 hex digits. page_bytes: of a block in all layers.
    transport: how the bytes of pages come. shape: how pages are divided among ranks.
    """

    secret: bytes
    fingerprint: str
    page_bytes: int
    transport: str = TCP
    shape: PageShape = UNDIVIDED

    def proof(self, role: str, first: bytes, second: bytes) -> bytes:
        """Return what only an end with the secret can say about two nonces. role: of the end that says it."""
        return hmac.digest(self.secret, b"core kv tcp\0" + role.encode() + b"\0" + first + second, hashlib.sha256)

    def terms(self, proof: bytes, problem: str = "") -> Terms:
        """Return the second message of this end. problem: why it refuses."""
        return Terms(proof, self.fingerprint, self.page_bytes, problem, self.transport, self.shape)

    def difference(self, terms: Terms) -> str:
        """Return the field in which another end differs, with both values; empty when they agree."""
        shapes = self._why_shapes(terms)
        if shapes and terms.shape.ranks != self.shape.ranks:  # fingerprints then differ as well, which says less
            return shapes
        if terms.fingerprint != self.fingerprint:
            return f"fingerprint {terms.fingerprint} instead of {self.fingerprint}: {WHY_WEIGHTS}"
        if shapes:
            return shapes
        if terms.transport != self.transport:
            return f"the transport {terms.transport} instead of {self.transport}: give both the same kv_connector"
        return ""

    def _why_shapes(self, terms: Terms) -> str:
        """Return why pages of another end cannot be used because of their shape or size, with both values; empty: they can."""
        if terms.shape == self.shape:
            differs = terms.page_bytes != self.page_bytes
            return f"pages of {terms.page_bytes} bytes instead of {self.page_bytes}" if differs else ""
        why = self.shape.why_not(terms.shape)
        if not why and TCP not in (terms.transport, self.transport):
            why = f"{terms.shape.ranks} ranks instead of {self.shape.ranks}: only tcp arranges pages anew"
        if not why and terms.page_bytes != terms.shape.page_bytes:
            why = f"pages of {terms.page_bytes} bytes in a shape of {terms.shape.page_bytes}"
        return why


def dial(connection: socket.socket, agreement: Agreement, purpose: str) -> Terms:
    """Agree as the end that has dialled; returns the terms of the other end.

    Raises PeerError with the reason when there is no agreement, OSError.
    """
    terms = terms_of(connection, agreement, purpose)
    problem = agreement.difference(terms) or terms.problem
    if problem:
        raise PeerError(f"it has {problem}")
    return terms


def terms_of(connection: socket.socket, agreement: Agreement, purpose: str) -> Terms:
    """Return the terms of the end that was dialled, once both ends have proved the secret. Raises PeerError, OSError."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    send(connection, Hello(MAGIC, nonce, purpose))
    theirs = _hello(connection)
    proof = agreement.proof("dials", nonce, theirs.nonce)
    send(connection, agreement.terms(proof))
    try:
        terms = receive(connection, Terms, SMALL_BYTES)
    except PeerError as error:
        raise PeerError("it hung up: it has another key file, or none") from error
    if not hmac.compare_digest(terms.proof, agreement.proof("listens", theirs.nonce, nonce)):
        raise PeerError("it does not know our key: it has another key file, or none")
    return terms


def answer(connection: socket.socket, agreement: Agreement, purposes: Sequence[str]) -> str:
    """Agree as the end that listens; returns the purpose of the connection, one of `purposes`. Raises PeerError, OSError."""
    theirs = _hello(connection)
    if theirs.purpose not in purposes:
        raise PeerError(f"it connects for {theirs.purpose!r}, expected one of {', '.join(purposes)}")
    nonce = secrets.token_bytes(NONCE_BYTES)
    send(connection, Hello(MAGIC, nonce))
    terms = receive(connection, Terms, SMALL_BYTES)
    if not hmac.compare_digest(terms.proof, agreement.proof("dials", theirs.nonce, nonce)):
        raise PeerError("it does not know our key: it has another key file, or none")
    problem = agreement.difference(terms)
    proof = agreement.proof("listens", nonce, theirs.nonce)
    send(connection, agreement.terms(proof, problem))
    if problem and theirs.purpose != CHECK:
        raise PeerError(f"it has {problem}")
    return theirs.purpose


def _hello(connection: socket.socket) -> Hello:
    hello = receive(connection, Hello, SMALL_BYTES)
    if hello.magic != MAGIC:
        raise PeerError(f"it speaks {hello.magic!r}, expected {MAGIC!r}")
    if len(hello.nonce) != NONCE_BYTES:
        raise PeerError(f"its nonce has {len(hello.nonce)} bytes, expected {NONCE_BYTES}")
    return hello
