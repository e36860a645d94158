"""The interface through which the KV manager asks for causes of prefix-cache misses.

Owns: the Protocol `MissExplainer` and `CacheView`, from which an explainer is built. Never does: determine a cause (a KV
connector provides the explainer). Called by: the manager and the block registry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from core.api.kv_transfer import PrefixKey
from core.api.sequence_record import CacheMiss
from core.kv.block_keys import BlockKeys
from core.kv.growth import Growth
from core.kv.prefix_hit import PrefixHit
from core.kv.prefix_table import PrefixTable
from core.kv.sequence import KVSequence


class CacheView(NamedTuple):
    """The parts of one KV manager that an explainer reads.

    keys:       keys of blocks.
    prefixes:   cached blocks.
    growth:     rule of each group.
    block_size: tokens in a block.
    num_blocks: blocks of the pool.
    has_states: whether layers have states.
    was_over_share: whether (group, digest) gave way because its tenant had more than its share.
    missing:    see `KVConnector.missing`, of all connectors.
    """

    keys: BlockKeys
    prefixes: PrefixTable
    growth: Sequence[Growth]
    block_size: int
    num_blocks: int
    has_states: bool
    was_over_share: Callable[[tuple[int, bytes]], bool]
    missing: Callable[[PrefixKey], str]


class MissExplainer(Protocol):
    """Remembers earlier sequences and determines why a token was not cached; provided by a KV connector."""

    def remember(self, sequence: KVSequence) -> None:
        """Remember a sequence with computed tokens that is about to lose its blocks."""
        ...

    def find(self, sequence: KVSequence, hit: PrefixHit) -> CacheMiss:
        """Return why the token after `hit`, the result of this sequence's look-up, is not cached. Changes nothing."""
        ...
