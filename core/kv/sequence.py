"""One sequence as the KV cache sees it.

Owns: `KVSequence`. Never does: know requests, queues or stop conditions (the scheduler's sequence extends it).
Called by: the manager (reads and writes) and the scheduler (extends).
"""

from __future__ import annotations

from core.api.kv_load import KVLoad
from core.api.kv_transfer import PrefixKey
from core.kv.hashing import KeyExtras


class KVSequence:
    """Tokens of a sequence and the blocks that hold their keys and values.

    token_ids:             prompt and output; drafts are not among them. Only ever appended to.
    cache_salt, extras:    prefixes are shared only where these are equal.
    tenant:                shares prefixes with nobody else; empty: with everybody who has none.
    num_public_tokens:     at the beginning, which tenants share all the same.
    owner:                 whose it is: what is remembered of it is told to nobody else. Prefixes are shared all the same.
    num_computed_tokens:   tokens, from the first on, whose keys and values are in the blocks.
    num_planned_tokens:    the same when all planned steps are done; kept up only until its prompt is planned whole.
    block_ids:             one block table for each KV group, empty without blocks; 0 where a window has passed.
    num_released:          leading entries of each table that are 0 for that reason.
    num_slots:             token positions, from the first on, that all groups have room for.
    num_initial_tokens:    tokens that were known when it got its first blocks.
    num_shared_blocks:     leading blocks that came from the prefix cache.
    num_registered_blocks: leading blocks that have been offered to the prefix table.
    prefix_keys:           keys of leading full blocks, as far as they were needed.
    num_forked_tokens:     tokens of the known prefix whose keys and values were found, whether its state was or not.
    num_kept_tokens:       tokens behind which its state was last kept, or found.
    snapshots:             all such numbers of tokens since it got its blocks.
    num_saved_tokens:      tokens whose state the copy has from before drafts were verified; -1 for none.
    is_rolled_back:        whether drafts were rejected, so that the next step has to begin from that copy.
    load:                  pages that it waits for, or that have come and are not in blocks yet; else None.
    """

    __slots__ = (
        "block_ids",
        "cache_salt",
        "extras",
        "is_rolled_back",
        "load",
        "num_computed_tokens",
        "num_forked_tokens",
        "num_initial_tokens",
        "num_kept_tokens",
        "num_planned_tokens",
        "num_public_tokens",
        "num_registered_blocks",
        "num_released",
        "num_saved_tokens",
        "num_shared_blocks",
        "num_slots",
        "owner",
        "prefix_keys",
        "snapshots",
        "tenant",
        "token_ids",
    )

    def __init__(
        self,
        token_ids: list[int],
        cache_salt: str | None = None,
        extras: KeyExtras | None = None,
        owner: str = "",
        tenant: str = "",
        num_public_tokens: int = 0,
    ) -> None:
        self.token_ids = token_ids
        self.cache_salt = cache_salt
        self.extras = extras
        self.owner = owner
        self.tenant = tenant
        self.num_public_tokens = num_public_tokens
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
        self.load: KVLoad | None = None
