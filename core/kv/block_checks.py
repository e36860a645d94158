"""Whether block tables, pool, groups and tiers agree.

Owns: `check_manager`. Never does: change or repair anything. Called by: `KVManager.check_integrity`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from core.kv.block_pool import NULL_BLOCK
from core.kv.integrity import require
from core.kv.sequence import KVSequence

if TYPE_CHECKING:
    from core.kv.manager import KVManager


def check_manager(kv: KVManager, sequences: Iterable[KVSequence]) -> None:
    """Raise `IntegrityError`, naming the invariant, unless every block is where it should be. O(blocks)."""
    expected: Counter[int] = Counter()
    owners: dict[int, int] = {}
    for sequence in sequences:
        if sequence.block_ids:
            _check_sequence(kv, sequence)
        for group, ids in enumerate(sequence.block_ids):
            held = [block_id for block_id in ids if block_id != NULL_BLOCK]
            expected.update(held)
            for block_id in held:
                owner = owners.setdefault(block_id, group)
                require(owner == group, "groups", f"block {block_id} is in tables of groups {owner} and {group}")
                entry = kv.pool.prefixes.entry(block_id)
                require(entry is None or entry[0] == group, "groups", f"block {block_id} is cached for another group")
    kv.pool.check_integrity(expected)
    if kv.tiers is not None:
        kv.tiers.check_integrity(kv.pool.num_blocks)


def _check_sequence(kv: KVManager, sequence: KVSequence) -> None:
    size, computed = kv.block_size, sequence.num_computed_tokens
    require(len(sequence.block_ids) == len(kv.groups), "groups", f"{len(sequence.block_ids)} tables")
    require(sequence.num_slots == kv.num_slots(sequence), "num_slots", f"{sequence.num_slots} is wrong")
    require(
        computed <= min(sequence.num_slots, len(sequence.token_ids)),
        "num_computed_tokens",
        f"{computed} of {len(sequence.token_ids)} tokens in {sequence.num_slots} slots",
    )
    require(
        sequence.num_registered_blocks * size <= max(computed, sequence.num_planned_tokens),
        "registered_blocks",
        f"{sequence.num_registered_blocks} blocks of {computed} computed tokens",
    )
    for group, ids in enumerate(sequence.block_ids):
        _check_table(kv, sequence, group, ids)


def _check_table(kv: KVManager, sequence: KVSequence, group: int, ids: list[int]) -> None:
    """One table: zeros in front as far as a window has passed, then blocks, each once, cached with the right tokens."""
    released, size = sequence.num_released[group], kv.block_size
    held = ids[released:]
    require(not any(ids[:released]), "windows", f"a block behind the window is still in the table {ids}")
    require(NULL_BLOCK not in held, "windows", f"the null block is in the live part of the table {ids}")
    require(
        released <= kv.growth[group].first_needed(sequence.num_computed_tokens),
        "windows",
        f"{released} blocks are released, a query at {sequence.num_computed_tokens} needs one of them",
    )
    require(len(set(held)) == len(held), "block_table", f"a block appears twice in {ids}")
    for index in range(released, min(sequence.num_registered_blocks, len(ids))):
        entry = kv.pool.prefixes.entry(ids[index])
        tokens = array("I", sequence.token_ids[index * size : (index + 1) * size]).tobytes()
        require(
            entry is None or entry[1].payload == tokens,
            "cached_tokens",
            f"block {ids[index]} is cached with other tokens",
        )
