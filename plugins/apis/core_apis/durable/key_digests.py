"""Owners of journal entries, in a form that does not depend on the order of API keys and does not reveal the keys.

Owns: `KeyDigests`. Never does: check keys (`core_apis.callers.authentication` does). Called by: `core_apis.durable`.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from core_apis.callers.tenant import Tenant

NOBODY = b""
"""The digest of requests without a key."""


class KeyDigests:
    """The digests of the tenants of one server.

    salt: of the journal. keys: in order. needs_key: whether every request has one.
    """

    def __init__(self, salt: bytes, keys: Sequence[str], *, needs_key: bool) -> None:
        self._digests: dict[Tenant, bytes] = {number: _digest(salt, key) for number, key in enumerate(keys)}
        if not needs_key:
            self._digests[None] = NOBODY
        self._numbers = {digest: tenant for tenant, digest in self._digests.items()}

    def digest(self, tenant: Tenant) -> bytes:
        """Return the journal's name of a tenant."""
        return self._digests[tenant]

    def knows(self, digest: bytes) -> bool:
        """Whether the digest belongs to one of this server's tenants."""
        return digest in self._numbers

    def tenant(self, digest: bytes) -> Tenant:
        """Return the tenant of a known digest."""
        return self._numbers[digest]


def _digest(salt: bytes, key: str) -> bytes:
    return hmac.digest(salt, key.encode("utf-8", "surrogateescape"), "sha256")
