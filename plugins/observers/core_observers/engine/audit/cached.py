"""Cached blocks that two sequences with the same tokens have, and the comparison of their bytes.

Owns: `CachedPair`, the search for pairs, and which bytes of a block are compared. Never does: compute a sequence, or choose
one. Called by: the answers that are computed again.

Blocks of all groups have one size. A group whose layers fill only a part of it, as states often do, leaves the other bytes as
an earlier owner of the block wrote them, so those are not compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from core.api.kv_transfer import Page
from core.kv.manager import KVManager
from core.scheduler.sequence import SequenceState
from core_observers.engine.audit.row import Difference

MOST_COMPARED = 128
"""Blocks of each side whose bytes are compared, drawn at random: 2,048 tokens, or 50 MB a side of a small model."""
AT_ONCE = 16

Ranges = list[tuple[int, int]]
UsedBytes = Callable[[int, int], Ranges]
"""Returns the ranges of a page that are filled, by group and number of the block within a state."""


@dataclass(frozen=True, slots=True)
class CachedPair:
    """Two blocks that should hold the same bytes.

    served: block of the answer. own: block of the copy. group: KV group of both. part: number of the block within a state; 0
    for keys and values.
    """

    served: int
    own: int
    group: int
    part: int = 0


def take_pairs(kv: KVManager, answer: SequenceState, again: SequenceState) -> list[CachedPair]:
    """Return the blocks that are cached for the same tokens of both, at most `MOST_COMPARED`.

    Covers keys and values, and the states that are kept after some of the blocks. Those of `again` are cached no longer.
    """
    served, own = _cached(kv, answer), _cached(kv, again)
    kv.forget(blocks[0] for blocks in own.values())
    states = [(index, part) for index, group in enumerate(kv.groups) for part in range(group.num_state_blocks)]
    pairs: list[CachedPair] = []
    for place, blocks in served.items():
        table = place[0]
        parts = states if table == len(kv.groups) else [(table, 0)]
        rows = zip(blocks, own.get(place, ()), parts, strict=False)
        pairs += [CachedPair(left, right, *part) for left, right, part in rows if left != right]
    # The next plan has yet to copy states into these blocks.
    written = [pair for pair in pairs if kv.pool.pending.isdisjoint((pair.served, pair.own))]
    return random.sample(written, min(len(written), MOST_COMPARED))


def compare(
    pairs: Sequence[CachedPair], read: Callable[[list[int]], list[Page]], used: UsedBytes | None
) -> Difference | None:
    """Return the first difference between the two blocks of a pair.

    read: returns the pages of blocks. used: see `UsedBytes`; None: blocks of this executor are filled.
    """
    for start in range(0, len(pairs), AT_ONCE):
        some = pairs[start : start + AT_ONCE]
        pages = read([pair.served for pair in some] + [pair.own for pair in some])
        for pair, served, own in zip(some, pages[: len(some)], pages[len(some) :], strict=True):
            ranges = [(0, len(served))] if used is None else used(pair.group, pair.part)
            left, right = (np.concatenate([page[begin:end] for begin, end in ranges]) for page in (served, own))
            if not np.array_equal(left, right):
                return Difference("cached", left.tobytes(), right.tobytes())
    return None


def _cached(kv: KVManager, sequence: SequenceState) -> dict[tuple[int, int], list[int]]:
    """Return the cached blocks of a sequence by table and entry. The last table has the states, with several blocks each."""
    if not kv.enable_prefix_caching:
        return {}
    found: dict[tuple[int, int], list[int]] = {}
    for entry in range(len(sequence.token_ids) // kv.block_size):
        key = kv.key(sequence, entry)
        for table in range(len(kv.groups) + 1):
            block = kv.pool.prefixes.find(key, table)
            if block is not None:
                found[table, entry] = kv.pool.parts(block)
    return found
