"""The agreement of two engines before they exchange pages.

Owns: the proof that both have the secret and say what arrives, and the comparison of what they compute. Never does: exchange
pages. Called by: both ends, at the start of each connection.

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

import msgspec

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

    def terms(self, problem: str = "") -> Terms:
        """Return what this end says about itself, without a proof. problem: why it refuses."""
        return Terms(b"", self.fingerprint, self.page_bytes, problem, self.transport, self.shape)

    def proved(self, terms: Terms, role: str, first: bytes, second: bytes) -> Terms:
        """Return terms with the proof that an end with the secret says them. role: of that end. first, second: the nonces.

        The proof covers the terms: with a shape that was altered on the way, good pages would be arranged to wrong ones.
        """
        said = msgspec.structs.replace(terms, proof=b"")
        content = b"core kv tcp\0" + role.encode() + b"\0" + first + second + msgspec.msgpack.encode(said)
        return msgspec.structs.replace(said, proof=hmac.digest(self.secret, content, hashlib.sha256))

    def check(self, terms: Terms, role: str, first: bytes, second: bytes) -> None:
        """Raise PeerError unless terms are those of an end with the secret. Arguments: as for `proved`."""
        if not hmac.compare_digest(terms.proof, self.proved(terms, role, first, second).proof):
            raise PeerError("it does not know our key: it has another key file, or none")

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
    send(connection, agreement.proved(agreement.terms(), "dials", nonce, theirs.nonce))
    try:
        terms = receive(connection, Terms, SMALL_BYTES)
    except PeerError as error:
        raise PeerError("it hung up: it has another key file, or none") from error
    agreement.check(terms, "listens", theirs.nonce, nonce)
    return terms


def answer(connection: socket.socket, agreement: Agreement, purposes: Sequence[str]) -> str:
    """Agree as the end that listens; returns the purpose of the connection, one of `purposes`. Raises PeerError, OSError."""
    theirs = _hello(connection)
    if theirs.purpose not in purposes:
        raise PeerError(f"it connects for {theirs.purpose!r}, expected one of {', '.join(purposes)}")
    nonce = secrets.token_bytes(NONCE_BYTES)
    send(connection, Hello(MAGIC, nonce))
    terms = receive(connection, Terms, SMALL_BYTES)
    agreement.check(terms, "dials", theirs.nonce, nonce)
    problem = agreement.difference(terms)
    send(connection, agreement.proved(agreement.terms(problem), "listens", nonce, theirs.nonce))
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
