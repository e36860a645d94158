"""Chained hashes of full blocks.

Owns: `PrefixHasher` (tokens to keys) and what else a key depends on. Never does: store keys (`core.kv.prefix_table`).
Called by: the manager.

The key of a block depends on all tokens before it, so equal keys mean equal prefixes. A hit counts only when the block's own
token ids are equal as well.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import xxhash

from core.api.errors import ConfigError, nearest
from core.api.kv_transfer import PrefixKey

Digest = Callable[[bytes], bytes]
HASH_ALGORITHMS = ("sha256", "sha256_cbor", "sha256_cbor_64bit", "xxhash", "xxhash_cbor")


class MediaSpan(NamedTuple):
    """Positions [start, stop) of a prompt that represent one media item. digest: of the item's content."""

    start: int
    stop: int
    digest: str


class KeyExtras(NamedTuple):
    """Parts of a sequence's keys in addition to its tokens.

    adapter: its digest; empty for the base model. adapter_from: first position that it computes. media: items in the prompt.
    """

    adapter: str = ""
    media: tuple[MediaSpan, ...] = ()
    adapter_from: int = 0

    def of_block(self, start: int, stop: int) -> list[str]:
        """Return the extra keys of the block with positions [start, stop): the adapter, and the media items that overlap it."""
        keys = []
        if self.adapter and stop > self.adapter_from:
            keys.append(f"lora:{max(self.adapter_from - start, 0)}:{self.adapter}")
        for span in self.media:
            if span.start < stop and span.stop > start:
                # Where the item begins in the block, or how much of it lies before: equal placeholder tokens must not match.
                offset = max(span.start - start, 0)
                passed = max(start - span.start, 0)
                keys.append(f"media:{offset}:{passed}:{span.digest}")
        return keys


class PrefixHasher:
    """Computes keys with one hash algorithm. Raises `ConfigError` for an unknown one.

    `sha256` and `xxhash` (XXH3, 128 bits; quicker, but collisions can be constructed) hash the parent's digest, the token
    ids (4 bytes each, native order) and the extra keys (msgpack). The `_cbor` forms hash the canonical CBOR (RFC 8949) of
    [parent, [token ids], [extra keys] or null], which other languages can reproduce.
    """

    def __init__(self, algorithm: str = "sha256") -> None:
        if algorithm not in HASH_ALGORITHMS:
            known = ", ".join(HASH_ALGORITHMS)
            hint = nearest(algorithm, HASH_ALGORITHMS)
            raise ConfigError([f"The prefix hash algorithm is '{algorithm}'; expected one of {known}.{hint}"])
        self.algorithm = algorithm
        self._digest: Digest = _sha256 if algorithm.startswith("sha256") else xxhash.xxh3_128_digest
        self._encode: Callable[[object], bytes] | None = None
        if "_cbor" in algorithm:  # `_64bit` shortens hashes in KV events alone
            self._encode = _canonical_cbor()

    def root(self, salt: str | None) -> bytes:
        """Return the parent digest of a first block. Prefixes with different salts are never shared."""
        if salt is None:
            # No salt can give this digest. With CBOR it is vLLM's under PYTHONHASHSEED=0, so that one indexer knows both.
            return self._digest(b"unsalted" if self._encode is None else self._encode("0"))
        return self._digest(b"salted:" + salt.encode())

    def private(self, parent: bytes, tenant: str) -> bytes:
        """Return the parent digest of a tenant's first private block after the prefix `parent`; tenants share none after it."""
        return self._digest(b"tenant:" + parent + tenant.encode())

    def key(self, parent: bytes, token_ids: Sequence[int], extra: Sequence[str] = ()) -> PrefixKey:
        """Return the key of the block of `token_ids` after the prefix with digest `parent`. extra: see `KeyExtras`."""
        # Part of the key itself: a hit compares it with the cached block's.
        payload = array("I", token_ids).tobytes()
        if extra:
            payload += msgspec.msgpack.encode(extra)
        data = parent + payload
        if self._encode is not None:
            data = self._encode([parent, list(token_ids), list(extra) or None])
        return PrefixKey(self._digest(data), payload)

    def chain(self, parent: bytes, payloads: bytes, size: int) -> list[PrefixKey]:
        """Return the keys of consecutive blocks of `size` tokens without extra keys, as `key` would; not for `_cbor`."""
        keys = list[PrefixKey]()
        for start in range(0, len(payloads), 4 * size):
            payload = payloads[start : start + 4 * size]
            parent = self._digest(parent + payload)
            keys.append(PrefixKey(parent, payload))
        return keys


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _canonical_cbor() -> Callable[[object], bytes]:
    import cbor2  # takes 20 ms, which only users of these algorithms should pay

    return lambda value: cbor2.dumps(value, canonical=True)
