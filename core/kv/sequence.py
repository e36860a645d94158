"""What the KV cache knows of one sequence.

Owns: `KVSequence`. Never does: know requests, queues or stop conditions (the scheduler's sequence extends it).
Called by: the manager (reads and writes) and the scheduler (extends).
"""

from __future__ import annotations

from core.kv.hashing import PrefixKey


class KVSequence:
    """Tokens of a sequence and the blocks that hold their keys and values.

    token_ids:             prompt and output; drafts are not among them. Only ever appended to.
    num_computed_tokens:   tokens, from the first on, whose keys and values are in the blocks.
    block_ids:             the block table.
    num_slots:             token positions that the blocks hold.
    num_initial_tokens:    tokens that were known when it got its first blocks.
    num_registered_blocks: leading blocks that have been offered to the prefix table.
    prefix_keys:           keys of leading full blocks, as far as they were needed.
    """

    __slots__ = (
        "block_ids",
        "cache_salt",
        "num_computed_tokens",
        "num_initial_tokens",
        "num_registered_blocks",
        "num_slots",
        "prefix_keys",
        "token_ids",
    )

    def __init__(self, token_ids: list[int], cache_salt: str | None = None) -> None:
        self.token_ids = token_ids
        self.cache_salt = cache_salt
        self.num_computed_tokens = 0
        self.block_ids: list[int] = []
        self.num_slots = 0
        self.num_initial_tokens = 0
        self.num_registered_blocks = 0
        self.prefix_keys: list[PrefixKey] = []
