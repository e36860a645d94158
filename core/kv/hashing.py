"""Chained hashes of full blocks and the table that finds a block by them.

Owns: `PrefixHasher` (tokens to keys) and `PrefixTable` (key to block id, token ids kept for verification).
Never does: count references or decide what is evicted. Called by: the block pool (table) and the manager (hasher).

The key of a block depends on all tokens before it, so equal keys mean equal prefixes. A hit is believed only when the
block's own token ids agree as well.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from core.api.errors import ConfigError, nearest
from core.kv.integrity import require

HASH_ALGORITHMS = ("sha256",)


class PrefixKey(NamedTuple):
    """Name of a full block. digest: hash of the whole prefix. payload: the block's own token ids, 4 bytes each."""

    digest: bytes
    payload: bytes


class PrefixHasher:
    """Computes the keys of one algorithm. Raises `ConfigError` for an unknown one."""

    def __init__(self, algorithm: str = "sha256") -> None:
        if algorithm not in HASH_ALGORITHMS:
            hint = f"expected one of {', '.join(HASH_ALGORITHMS)}.{nearest(algorithm, HASH_ALGORITHMS)}"
            raise ConfigError([f"The prefix hash algorithm is '{algorithm}'; {hint}"])
        self.algorithm = algorithm

    def root(self, salt: str | None) -> bytes:
        """The parent digest of a first block. Prefixes under different salts never meet."""
        return hashlib.sha256(b"unsalted" if salt is None else b"salted:" + salt.encode()).digest()

    def key(self, parent: bytes, token_ids: Sequence[int]) -> PrefixKey:
        """The key of the block that holds `token_ids` after the prefix with digest `parent`."""
        payload = array("I", token_ids).tobytes()
        return PrefixKey(hashlib.sha256(parent + payload).digest(), payload)


class PrefixTable:
    """Cached blocks by key: at most one block a key, at most one key a block."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, PrefixKey] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._keys

    def find(self, key: PrefixKey) -> int | None:
        """The block cached under `key`, or None when there is none or its token ids differ (a collision)."""
        block_id = self._blocks.get(key.digest)
        if block_id is None or self._keys[block_id].payload != key.payload:
            return None
        return block_id

    def insert(self, key: PrefixKey, block_id: int) -> bool:
        """Cache `block_id` under `key`; False (and no change) when the digest or the block is already in the table."""
        if key.digest in self._blocks or block_id in self._keys:
            return False
        self._blocks[key.digest] = block_id
        self._keys[block_id] = key
        return True

    def discard(self, block_id: int) -> None:
        """Forget a cached block."""
        del self._blocks[self._keys.pop(block_id).digest]

    def payload(self, block_id: int) -> bytes | None:
        """Token ids of a cached block, 4 bytes each, or None when it is not cached."""
        key = self._keys.get(block_id)
        return None if key is None else key.payload

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
        self._keys.clear()

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless both directions of the table agree."""
        require(len(self._blocks) == len(self._keys), "prefix_table", "keys and blocks differ in number")
        for block_id, key in self._keys.items():
            require(
                self._blocks.get(key.digest) == block_id, "prefix_table", f"block {block_id} is not found under its key"
            )
