"""Prefixes of sessions as servers name them, and what is pinned of one.

Owns: `Prefix`, `Pin`. Never does: look up or hold a block. Called by: the pins of sessions.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import msgspec

from core.kv.hashing import KeyExtras
from core.kv.sequence import KVSequence


class Prefix(msgspec.Struct, frozen=True):
    """The tokens of a session, and everything else that the keys of its blocks depend on.

    tokens: int32 in the machine's byte order.
    lengths: numbers of leading tokens from which the next turn may go on.
    salt, tenant, num_public_tokens, adapter, adapter_from: of the requests, see `EngineRequest`.
    """

    tokens: bytes
    lengths: list[int] = []
    salt: str | None = None
    tenant: str = ""
    num_public_tokens: int = 0
    adapter: str = ""
    adapter_from: int = 0

    def sequence(self) -> KVSequence:
        """Return a sequence of these tokens, which has no blocks."""
        ids = array("i")
        ids.frombytes(self.tokens)
        extras = KeyExtras(self.adapter, (), self.adapter_from) if self.adapter else None
        return KVSequence(ids.tolist(), self.salt, extras, "", self.tenant, self.num_public_tokens)


@dataclass(slots=True)
class Pin:
    """One pin. client: the engine's number of the client that asked last. expires: on the clock."""

    prefix: Prefix
    sequence: KVSequence
    blocks: list[int]
    client: int
    expires: float

    def is_start_of(self, prefix: Prefix) -> bool:
        """Whether a prefix begins with the tokens of this pin, under the same keys."""
        is_longer = prefix.tokens.startswith(self.prefix.tokens)
        same = msgspec.structs.replace(self.prefix, tokens=prefix.tokens, lengths=prefix.lengths)
        return is_longer and same == prefix


def beginning(sequence: KVSequence, length: int) -> KVSequence:
    """Return a sequence whose look-up finds at most `length` tokens, and shares the keys of `sequence`."""
    # One token more, since a look-up leaves at least one to compute.
    ids = [*sequence.token_ids[:length], 0]
    found = KVSequence(ids, sequence.cache_salt, sequence.extras, "", sequence.tenant, sequence.num_public_tokens)
    found.prefix_keys = sequence.prefix_keys
    return found
