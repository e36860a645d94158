"""Keys of a sequence's full blocks.

The prefix of a sequence with a tenant is shared only with sequences of the same tenant, except for leading blocks that contain
public tokens only.

Owns: `BlockKeys`. Never does: hash (the hasher does) or find blocks. Called by: the prefix search and the registration.
"""

from __future__ import annotations

from array import array
from functools import lru_cache

from core.api.kv_transfer import PrefixKey
from core.kv.hashing import PrefixHasher
from core.kv.sequence import KVSequence

AHEAD = 64
"""Number of keys that are computed in one go, in half the time that they take one by one."""
RECENT = 1 << 19
"""Tokens of such chains that are remembered, in some 10 MB: agents send their whole history again with every turn."""


class BlockKeys:
    """Keys of blocks of `block_size` tokens, by one hash algorithm. Raises `ConfigError` for an unknown one."""

    def __init__(self, algorithm: str, block_size: int) -> None:
        self._hasher = PrefixHasher(algorithm)
        self._block_size = block_size
        self._chains = "_cbor" not in algorithm
        self._chain = lru_cache(max(RECENT // (AHEAD * block_size), 1))(self._hasher.chain)

    def key(self, sequence: KVSequence, index: int) -> PrefixKey:
        """Return the key of the full block at `index`, computed once for each sequence."""
        keys = sequence.prefix_keys
        if index >= len(keys):
            # Not of the last token: where a prefix is looked up for a pin, it stands for any, and keys are shared with others.
            known = (len(sequence.token_ids) - 1) // self._block_size
            self._extend(sequence, max(index + 1, min(index + AHEAD, known)))
        return keys[index]

    def root(self, sequence: KVSequence) -> bytes:
        """Return the parent digest of a sequence's first block, which depends on salt and tenant."""
        root = self._hasher.root(sequence.cache_salt)
        # With public tokens the tenant enters later, after the last public block (`_extend`).
        is_private = sequence.tenant and not self._num_public(sequence)
        return self._hasher.private(root, sequence.tenant) if is_private else root

    def _num_public(self, sequence: KVSequence) -> int:
        """Return the number of leading blocks that all tenants share."""
        return sequence.num_public_tokens // self._block_size

    def _extend(self, sequence: KVSequence, count: int) -> None:
        """Compute keys until there are `count` of them."""
        keys = sequence.prefix_keys
        size = self._block_size
        parent = keys[-1].digest if keys else self.root(sequence)
        first_private = self._num_public(sequence) if sequence.tenant else 0
        while len(keys) < count:
            if first_private and len(keys) == first_private:
                # Once is enough: every later digest includes this one, so that the tenant is part of all later keys.
                parent = self._hasher.private(parent, sequence.tenant)
            start = len(keys) * size
            if self._chains and sequence.extras is None:
                end = first_private if len(keys) < first_private < count else count
                keys += self._chain(parent, array("I", sequence.token_ids[start : end * size]).tobytes(), size)
            else:
                extra = [] if sequence.extras is None else sequence.extras.of_block(start, start + size)
                keys.append(self._hasher.key(parent, sequence.token_ids[start : start + size], extra))
            parent = keys[-1].digest
