"""Where the pages of a prefix are: in the KV cache, or with KV connectors.

Owns: `prefix_places`. Never does: load, move or hold a page. Called by: the pins of sessions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from core.api.kv_transfer import PrefixKey
from core.kv.connector import KVConnector
from core.kv.connectors import KVConnectors
from core.kv.manager import KVManager
from core.kv.sequence import KVSequence

POOL = "pool"
MOST_LOOKS = 256
"""Limit on the pages of one group that a connector is asked for. Each may be a look at a disk; of more pages, equal distances
apart, the number is estimated."""


def prefix_places(kv: KVManager, connectors: KVConnectors, sequence: KVSequence) -> Mapping[str, int]:
    """Return the number of blocks of a sequence's full blocks by place: `pool`, and the places of connectors.

    A block may be in several places. What a connector has is estimated for long sequences.
    """
    keys = [kv.key(sequence, index) for index in range(len(sequence.token_ids) // kv.block_size)]
    keyed = [group for group, rule in enumerate(kv.growth) if rule.holds_slots]
    found: Counter[str] = Counter({POOL: 0})
    for group in (*keyed, len(kv.groups)):
        for key in keys:
            block_id = kv.pool.prefixes.find(key, group)
            if block_id is not None:
                found[POOL] += len(kv.pool.parts(block_id))
    for connector in connectors.connectors:
        if kv.enable_prefix_caching:
            _ask(found, kv, connector, keys, keyed)
    return found


def _ask(
    found: Counter[str], kv: KVManager, connector: KVConnector, keys: Sequence[PrefixKey], keyed: Sequence[int]
) -> None:
    """Add what a connector has."""
    step = -(-len(keys) // MOST_LOOKS) or 1
    memory, storage = getattr(connector, "places", (connector.argument, connector.argument))
    # Group `num_groups` stands for a state, all of whose pages are stored together; states are few, the newest count.
    rows = [(group, keys[::step], step) for group in keyed]
    if kv.states.num_blocks:
        rows.append((len(kv.groups), keys[-MOST_LOOKS:], kv.states.num_blocks))
    can_load = connector.can_load()
    for group, asked, weight in rows:
        for key in asked:
            if connector.contains(group, key):
                found[memory] += weight
            if (
                can_load
                and connector.may_load(group, key)
                and (memory != storage or not connector.contains(group, key))
            ):
                found[storage] += weight
