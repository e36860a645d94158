"""The keys of a sequence's full blocks.

The prefix of a sequence with a tenant is shared with the same tenant's alone, but for the blocks at its beginning that hold
nothing but public tokens.

Owns: `BlockKeys`. Never does: hash (the hasher does) or find blocks. Called by: the prefix search and the registration.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.kv_transfer import PrefixKey
from core.kv.hashing import PrefixHasher
from core.kv.sequence import KVSequence


class BlockKeys:
    """Keys of blocks of `block_size` tokens, by one hash algorithm. Raises `ConfigError` for an unknown one."""

    def __init__(self, algorithm: str, block_size: int) -> None:
        self._hasher = PrefixHasher(algorithm)
        self._block_size = block_size

    def key(self, sequence: KVSequence, index: int) -> PrefixKey:
        """Key of the full block at `index`, computed once a sequence."""
        keys = sequence.prefix_keys
        if index >= len(keys):
            self._extend(sequence, index + 1)
        return keys[index]

    def root(self, sequence: KVSequence) -> bytes:
        """What stands where the digest of the block before would, for a sequence's first block."""
        root = self._hasher.root(sequence.cache_salt)
        if sequence.tenant and not self._num_public(sequence):
            return self._hasher.private(root, sequence.tenant)
        return root

    def _num_public(self, sequence: KVSequence) -> int:
        """Leading blocks that all tenants share."""
        return sequence.num_public_tokens // self._block_size

    def _extend(self, sequence: KVSequence, count: int) -> None:
        """Compute keys until there are `count` of them."""
        keys = sequence.prefix_keys
        size = self._block_size
        parent = keys[-1].digest if keys else self.root(sequence)
        first_private = self._num_public(sequence) if sequence.tenant else 0
        while len(keys) < count:
            if first_private and len(keys) == first_private:
                parent = self._hasher.private(parent, sequence.tenant)
            start = len(keys) * size
            stop = start + size
            extra: Sequence[str] = ()
            if sequence.extras is not None:
                extra = sequence.extras.of_block(start, stop)
            key = self._hasher.key(parent, sequence.token_ids[start:stop], extra)
            keys.append(key)
            parent = key.digest
