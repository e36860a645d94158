"""Checks that block tables, pool and groups agree.

Owns: `check_blocks`. Never does: change or repair anything. Called by: `KVManager.check_integrity`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable

from core.kv.block_pool import NULL_BLOCK
from core.kv.block_tables import BlockTables
from core.kv.integrity import require
from core.kv.prefix_table import PrefixTable
from core.kv.sequence import KVSequence


def check_blocks(tables: BlockTables, sequences: Iterable[KVSequence]) -> None:
    """Raise `IntegrityError`, naming the invariant, unless every block is where it should be. O(blocks).

    sequences: all that may hold blocks.
    """
    expected: Counter[int] = Counter()
    owners: dict[int, int] = {}
    prefixes = tables.pool.prefixes
    for sequence in sequences:
        if sequence.block_ids:
            _check_sequence(tables, sequence)
        for group, ids in enumerate(sequence.block_ids):
            held = [block_id for block_id in ids if block_id != NULL_BLOCK]
            expected.update(held)
            for block_id in held:
                owner = owners.setdefault(block_id, group)
                require(owner == group, "groups", f"block {block_id} is in tables of groups {owner} and {group}")
                entry = prefixes.entry(block_id)
                if entry is not None:
                    require(entry[0] == group, "groups", f"block {block_id} is cached for another group")
    tables.pool.check_integrity(expected)


def _check_sequence(tables: BlockTables, sequence: KVSequence) -> None:
    size = tables.block_size
    computed = sequence.num_computed_tokens
    num_tokens = len(sequence.token_ids)
    require(len(sequence.block_ids) == len(tables.groups), "groups", f"{len(sequence.block_ids)} tables")
    require(sequence.num_slots == tables.num_slots(sequence), "num_slots", f"{sequence.num_slots} is wrong")
    require(
        computed <= min(sequence.num_slots, num_tokens),
        "num_computed_tokens",
        f"{computed} of {num_tokens} tokens in {sequence.num_slots} slots",
    )
    require(
        sequence.num_registered_blocks * size <= max(computed, sequence.num_planned_tokens),
        "registered_blocks",
        f"{sequence.num_registered_blocks} blocks of {computed} computed tokens",
    )
    for table in tables.groups:
        table.check(sequence)
        ids = sequence.block_ids[table.group]
        num_released = sequence.num_released[table.group]
        _check_cached(tables.pool.prefixes, sequence, ids, num_released, size)


def _check_cached(prefixes: PrefixTable, sequence: KVSequence, ids: list[int], first: int, size: int) -> None:
    """Check that cached blocks of a table from index `first` on are cached under the right tokens."""
    num_registered = min(sequence.num_registered_blocks, len(ids))
    for index in range(first, num_registered):
        block_id = ids[index]
        entry = prefixes.entry(block_id)
        if entry is None:
            continue
        _, key = entry
        payload = array("I", sequence.token_ids[index * size : (index + 1) * size]).tobytes()
        require(key.payload.startswith(payload), "cached_tokens", f"block {block_id} is cached with other tokens")
