"""The keys of a sequence's full blocks.

Owns: `BlockKeys`. Never does: hash (the hasher does) or find blocks. Called by: the prefix search and the registration.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.kv.hashing import PrefixHasher, PrefixKey
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
        return self._hasher.root(sequence.cache_salt)

    def _extend(self, sequence: KVSequence, count: int) -> None:
        """Compute keys until there are `count` of them."""
        keys = sequence.prefix_keys
        size = self._block_size
        parent = keys[-1].digest if keys else self.root(sequence)
        while len(keys) < count:
            start = len(keys) * size
            stop = start + size
            extra: Sequence[str] = ()
            if sequence.extras is not None:
                extra = sequence.extras.of_block(start, stop)
            key = self._hasher.key(parent, sequence.token_ids[start:stop], extra)
            keys.append(key)
            parent = key.digest
