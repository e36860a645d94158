"""The part of a sequence that the KV cache knows.

Owns: `KVSequence`. Never does: know requests, queues or stop conditions (the scheduler's sequence extends it).
Called by: the manager (reads and writes) and the scheduler (extends).
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.kv_load import KVLoad
from core.api.kv_transfer import PrefixKey
from core.kv.hashing import KeyExtras

MAX_WAITS = 8
"""Limit of a sequence's waits for pages of blocks that were just evicted, or for room; others may take more meanwhile."""


class KVSequence:
    """Tokens of a sequence and the blocks of their keys and values; the base of the scheduler's sequence.

    token_ids:             prompt and output tokens, without drafts; append-only.
    cache_salt, extras:    prefixes are shared only where these are equal.
    tenant:                its prefixes are shared within this tenant only; empty: with all sequences without a tenant.
    num_public_tokens:     leading tokens that all tenants share nevertheless.
    edges:                 positions at which a later prompt may leave this one, where a state is kept too.
    max_cut:               maximum number of tokens that a stop string may cut off its end.
    owner:                 user whose sequence it is; its records are shown to no other user. Prefixes are shared nevertheless.
    num_computed_tokens:   leading tokens whose keys and values are in the blocks.
    num_planned_tokens:    the same after all planned steps; updated only until the whole prompt is planned.
    block_ids:             one block table for each KV group, empty without blocks; 0 for entries before a window.
    num_released:          number of leading entries of each table that are 0 for that reason.
    num_slots:             leading token positions that all groups have room for.
    num_initial_tokens:    tokens that were known when it got its first blocks.
    num_shared_blocks:     leading blocks that came from the prefix cache.
    num_registered_blocks: leading blocks that have been offered to the prefix table.
    prefix_keys:           keys of leading full blocks, as far as they were needed.
    num_forked_tokens:     tokens of the longest cached prefix of keys and values, whether its state is cached or not.
    num_kept_tokens:       position of its last state that was kept, or taken from the cache.
    snapshots:             all such positions since it got its blocks.
    num_saved_tokens:      position of the state that was copied before drafts were verified; -1 for none.
    is_rolled_back:        whether drafts were rejected, so that the next step has to begin from that copy.
    num_waits:             number of times that it has waited for pages of evicted blocks, keys, or room for a state.
    load:                  pages that it waits for, or that are loaded and not in blocks yet; else None.
    """

    __slots__ = (
        "block_ids", "cache_salt", "edges", "extras", "is_rolled_back", "load", "max_cut", "num_computed_tokens",
        "num_forked_tokens", "num_initial_tokens", "num_kept_tokens", "num_planned_tokens", "num_public_tokens",
        "num_registered_blocks", "num_released", "num_saved_tokens", "num_shared_blocks", "num_slots", "num_waits",
        "owner", "prefix_keys", "snapshots", "tenant", "token_ids",
    )  # fmt: skip

    def __init__(
        self,
        token_ids: list[int],
        cache_salt: str | None = None,
        extras: KeyExtras | None = None,
        owner: str = "",
        tenant: str = "",
        num_public_tokens: int = 0,
        edges: Sequence[int] = (),
    ) -> None:
        self.token_ids = token_ids
        self.cache_salt = cache_salt
        self.extras = extras
        self.owner = owner
        self.tenant = tenant
        self.num_public_tokens = num_public_tokens
        self.edges = edges
        self.max_cut = 0
        self.num_computed_tokens = 0
        self.num_planned_tokens = 0
        self.block_ids: list[list[int]] = []
        self.num_released: list[int] = []
        self.num_slots = 0
        self.num_initial_tokens = 0
        self.num_shared_blocks = 0
        self.num_registered_blocks = 0
        self.prefix_keys: list[PrefixKey] = []
        self.num_forked_tokens = 0
        self.num_kept_tokens = 0
        self.snapshots: list[int] = []
        self.num_saved_tokens = -1
        self.is_rolled_back = False
        self.num_waits = 0
        self.load: KVLoad | None = None
