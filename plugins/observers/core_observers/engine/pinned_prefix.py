"""Prefixes of sessions as servers name them, and the blocks and pages of one that a pin holds.

Owns: `Prefix`, `Pin`, and which blocks and pages the next turn may begin with. Never does: hold one. Called by: the pins of
sessions.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from core.api.kv_transfer import PrefixKey
from core.kv.connector import HeldPage
from core.kv.connectors import KVConnectors
from core.kv.hashing import KeyExtras
from core.kv.manager import KVManager
from core.kv.prefix_needs import PrefixNeeds
from core.kv.sequence import KVSequence

MOST_EDGES = 8
"""Number of block edges, from the last one back, at which the state of a prefix is looked for."""


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
    """One pin.

    blocks: pinned in the pool. num_held: number of pages that KV connectors hold.
    client: the engine's number of the client that asked last. share: of each place that all pins may take. expires: on the
    clock.
    """

    prefix: Prefix
    sequence: KVSequence
    blocks: list[int]
    client: int
    share: float
    expires: float
    num_held: int = field(default=0, init=False)

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


def blocks_in_pool(kv: KVManager, sequence: KVSequence, lengths: list[int]) -> list[int]:
    """Return the cached blocks with which a prompt begins that goes on after one of these numbers of tokens."""
    found: list[int] = []
    for length in lengths:
        hit = kv.lookup_now(beginning(sequence, length))
        found += [block_id for ids in (*hit.block_ids, hit.state[:1]) for block_id in ids if block_id]
    return found


def pages_of(
    kv: KVManager, connectors: KVConnectors, sequence: KVSequence, lengths: list[int], blocks: list[int]
) -> list[HeldPage]:
    """Return the pages with which a prompt begins that goes on after one of these numbers of tokens, wherever they are.

    blocks: those that are pinned in the pool.
    """
    needs = PrefixNeeds(kv.growth, kv.block_size, kv.states.num_blocks)
    pinned = set(blocks)
    found: dict[tuple[int, int], HeldPage] = {}
    for length in lengths:
        for group, index in needs.entries(_edge(kv, connectors, sequence, length // kv.block_size)):
            key = kv.key(sequence, index)
            # The pages of a state are one entry of the pool's last table, under its first block.
            block_id = kv.pool.prefixes.find(key, min(group, len(kv.groups)))
            found[group, index] = (group, key, block_id in pinned)
    return list(found.values())


def _edge(kv: KVManager, connectors: KVConnectors, sequence: KVSequence, most: int) -> int:
    """Return the number of full blocks after which a prompt may go on: of a model with states, where one is, the last such."""
    if not kv.states.num_blocks:
        return most
    table = len(kv.groups)
    for num_blocks in range(most, max(most - MOST_EDGES, 0), -1):
        key = kv.key(sequence, num_blocks - 1)
        if kv.pool.prefixes.find(key, table) is not None or any(_has(connectors, table, key)):
            return num_blocks
    return most


def _has(connectors: KVConnectors, group: int, key: PrefixKey) -> Iterator[bool]:
    for connector in connectors.connectors:
        yield connector.contains(group, key) or (connector.can_load() and connector.may_load(group, key))
