"""Causes of prefix-cache misses, as the KV manager asks for them.

Owns: the Protocol `MissExplainer` and `CacheView`, which an explainer is built from. Never does: find a cause (a KV connector
brings the explainer). Called by: the manager and the block registry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from core.api.sequence_record import CacheMiss
from core.kv.block_keys import BlockKeys
from core.kv.growth import Growth
from core.kv.prefix_hit import PrefixHit
from core.kv.prefix_table import PrefixTable
from core.kv.sequence import KVSequence


class CacheView(NamedTuple):
    """One KV manager as an explainer reads it.

    keys:       keys of blocks.
    prefixes:   cached blocks.
    growth:     rule of each group.
    block_size: tokens in a block.
    num_blocks: blocks of the pool.
    has_states: whether layers have states.
    """

    keys: BlockKeys
    prefixes: PrefixTable
    growth: Sequence[Growth]
    block_size: int
    num_blocks: int
    has_states: bool


class MissExplainer(Protocol):
    """Remembers earlier sequences and says why a token was not cached."""

    def remember(self, sequence: KVSequence) -> None:
        """A sequence with computed tokens is about to lose its blocks."""
        ...

    def find(self, sequence: KVSequence, hit: PrefixHit) -> CacheMiss:
        """The cause for the token after `hit`, which was just found for this sequence. Changes nothing."""
        ...


MakeExplainer = Callable[[CacheView], MissExplainer | None]
