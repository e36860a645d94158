"""The longest prefix of a sequence that the cache can serve.

Owns: `PrefixHit` and the search for it over all groups and tiers. Never does: take blocks. Called by: the manager.

A prefix of n blocks can be served when every group has what a query right behind it reads: groups that keep every token
all n blocks, sliding ones those of the last window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from core.api.kv_transfer import Page
from core.kv.block_pool import NULL_BLOCK
from core.kv.sequence import KVSequence

if TYPE_CHECKING:
    from core.kv.manager import KVManager


class PageLoad(NamedTuple):
    """A block that a tier has: its values, and the entry of the table of `group` that it belongs to."""

    group: int
    entry: int
    page: Page


@dataclass(slots=True)
class PrefixHit:
    """A prefix of `num_tokens` tokens: the start of each group's table, and pages to load where that has a 0.

    Entries that no later query reads are 0 (the null block) and have no page.
    """

    num_tokens: int
    block_ids: list[list[int]]
    loads: list[PageLoad] = field(default_factory=list)


def find_prefix(kv: KVManager, sequence: KVSequence) -> PrefixHit:
    """Search; at least one token of the sequence is left to compute."""
    most = (len(sequence.token_ids) - 1) // kv.block_size
    while True:
        num_blocks = most
        for group, growth in enumerate(kv.growth):
            if growth.needs_prefix:
                num_blocks = _leading(kv, sequence, group, num_blocks)
        num_blocks = _with_windows(kv, sequence, num_blocks)
        hit = _gather(kv, sequence, num_blocks)
        if hit is not None:
            return hit


def _has(kv: KVManager, sequence: KVSequence, group: int, index: int) -> bool:
    key = kv.key(sequence, index)
    if kv.pool.prefixes.find(key, group) is not None:
        return True
    return kv.tiers is not None and kv.tiers.contains(group, key)


def _leading(kv: KVManager, sequence: KVSequence, group: int, most: int) -> int:
    """How many blocks from the first on the group has, up to `most`."""
    for index in range(most):
        if not _has(kv, sequence, group, index):
            return index
    return most


def _with_windows(kv: KVManager, sequence: KVSequence, most: int) -> int:
    """The most blocks, up to `most`, whose last window each sliding group has."""
    sliding = [(group, growth) for group, growth in enumerate(kv.growth) if not growth.needs_prefix]
    num_blocks, agreed = most, 0
    while num_blocks and agreed < len(sliding):
        for group, growth in sliding:
            first = growth.first_needed(num_blocks * kv.block_size)
            missing = next(
                (index for index in range(num_blocks - 1, first - 1, -1) if not _has(kv, sequence, group, index)), None
            )
            if missing is not None:
                num_blocks, agreed = missing, 0
                break
            agreed += 1
    return num_blocks


def _gather(kv: KVManager, sequence: KVSequence, num_blocks: int) -> PrefixHit | None:
    """Blocks and pages of a prefix; None when a page turned out to be unreadable (its tier no longer has it then)."""
    num_tokens = num_blocks * kv.block_size
    hit = PrefixHit(num_tokens, [])
    for group, growth in enumerate(kv.growth):
        first = growth.first_needed(num_tokens)
        ids = [NULL_BLOCK] * num_blocks
        for index in range(first, num_blocks):
            key = kv.key(sequence, index)
            block_id = kv.pool.prefixes.find(key, group)
            if block_id is not None:
                ids[index] = block_id
                continue
            page = None if kv.tiers is None else kv.tiers.read(group, key)
            if page is None:
                return None
            hit.loads.append(PageLoad(group, index, page))
        hit.block_ids.append(ids)
    return hit
