"""Tickets: what a producer writes about a lease, and recognizes when a consumer brings it.

Owns: `Ticket`, its signature and its text. Never does: know which leases there are. Called by: `Leases`.

A ticket passes through a client and its proxy, which may read, change or repeat it. It names no block and no page, and only
its producer can check it: the key of the signature is drawn when the producer starts, and never leaves it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

import msgspec

from core.api.errors import UNREADABLE

PREFIX: Final = "core-kv-ticket-1"
MOST_CHARACTERS: Final = 1024
"""Longest text that is read; ours have less than 400 characters."""
KEY_BYTES: Final = 32


class Ticket(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What a ticket says.

    lease: 16 random bytes. fingerprint: 32 hex digits, of weights, numerics and layout. digest: of the last block's prefix key,
    which stands for all blocks before it; empty: no block. num_blocks: of the prefix. tenant: see `tenant_digest`. until:
    seconds since the epoch at which the lease ends unless it is claimed.
    """

    lease: bytes
    fingerprint: str
    digest: bytes
    num_blocks: int
    tenant: bytes
    until: float


def tenant_digest(tenant: str) -> bytes:
    """Return 16 bytes that stand for a tenant, so that tickets name none."""
    return hashlib.blake2b(b"core kv tenant\0" + tenant.encode(), digest_size=16).digest()


def written(ticket: Ticket, key: bytes) -> str:
    """Return the text of a ticket: `PREFIX`, its content and its HMAC-SHA256, base64 without padding, divided by points."""
    content = _encoded(msgspec.msgpack.encode(ticket))
    return f"{PREFIX}.{content}.{_encoded(_signature(content, key))}"


def read(text: str, key: bytes) -> Ticket | None:
    """Return the ticket that a text is, or None unless it was written with this key."""
    if len(text) > MOST_CHARACTERS or not text.isascii():
        return None
    prefix, _, rest = text.partition(".")
    content, _, signature = rest.partition(".")
    if prefix != PREFIX:
        return None
    # As text: several texts of base64 have the same bytes, and only ours is a ticket.
    if not hmac.compare_digest(signature, _encoded(_signature(content, key))):
        return None
    try:
        decoded = base64.b64decode(content + "=" * (-len(content) % 4), b"-_", validate=True)
        return msgspec.msgpack.decode(decoded, type=Ticket)
    except (binascii.Error, *UNREADABLE):
        return None


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _signature(content: str, key: bytes) -> bytes:
    return hmac.digest(key, f"{PREFIX}.{content}".encode(), hashlib.sha256)
