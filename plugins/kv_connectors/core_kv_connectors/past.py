"""A bounded history of earlier sequences: their blocks, and the tokens that followed.

Owns: `PastPrefixes`. Never does: keep blocks, or judge. Called by: `MissFinder`, when a sequence leaves and when it
looks for the cause of a miss.

An entry records that a sequence of some owner had computed a block, and which tokens followed it in the newest such
sequence. An entry is only reported to its owner: the same salt and the same user. Entries are kept in two generations,
so the newest ones stay without any sorting. A decode step does nothing here; a sequence that leaves costs a table entry
per block, whose keys are already computed by then.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable

import xxhash

from core.api.kv_transfer import PrefixKey
from core.kv.block_keys import BlockKeys
from core.kv.sequence import KVSequence

ENTRY_BYTES = 240
"""Upper limit on the size of an entry without its tokens: names, headers and its place in the table."""

TOKEN_BYTES = array("I").itemsize

MAX_BYTES = 8 << 20
"""Size limit of one generation of a table."""

MIN_ENTRIES = 4096
"""Minimum entries of one generation: small caches forget quickly, and entries cost almost nothing there."""


class Generations:
    """A table that drops its oldest entries. most: at least this many of the newest are kept, and at most twice as
    many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, name: bytes) -> bytes | None:
        """Return the newest value of a name."""
        found = self._young.get(name)
        return self._old.get(name) if found is None else found

    def update(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Add entries, the newest last."""
        rest = iter(entries)
        while True:
            # In one go: a long prompt has thousands of entries, most of which are there already.
            room = max(self._most - len(self._young), 1)
            added = dict(itertools.islice(rest, room))
            if not added:
                return
            if len(self._young) >= self._most:
                self._old = self._young
                self._young = {}
            self._young.update(added)


class PastPrefixes:
    """The past of sequences in blocks of `block_size` tokens.

    num_blocks: of the KV cache; the history covers about twice as many, within `MAX_BYTES`.
    across_tenants: also remember computed tokens of all tenants.
    across_adapters: also remember computed tokens whatever their adapter.
    """

    def __init__(
        self,
        keys: BlockKeys,
        block_size: int,
        num_blocks: int,
        *,
        across_tenants: bool = False,
        across_adapters: bool = False,
    ) -> None:
        self.across_tenants = across_tenants
        self.across_adapters = across_adapters
        self._keys = keys
        self._block_size = block_size
        entry_bytes = ENTRY_BYTES + TOKEN_BYTES * block_size
        wanted = max(2 * num_blocks, MIN_ENTRIES)
        most = min(wanted, MAX_BYTES // entry_bytes)
        self._followed = Generations(most)
        self._tenants = Generations(most)
        self._adapters = Generations(most)

    def remember(self, sequence: KVSequence) -> None:
        """Remember the blocks of a leaving sequence that were offered to the prefix table."""
        keys = sequence.prefix_keys[: sequence.num_registered_blocks]
        parents = [self._keys.root(sequence), *(key.digest for key in keys)]
        tail = self._tokens(sequence, len(keys))
        behind = [key.payload for key in keys] if sequence.extras is None else [*map(self._payload_tokens, keys)]
        behind.append(tail)
        self._followed.update(zip(_named(parents, sequence.owner), behind, strict=True))
        if self.across_tenants:
            tenant = _tenant(sequence)
            self._tenants.update((name, tenant) for name in _chain(key.payload for key in keys))
        if self.across_adapters:
            adapter = _adapter(sequence)
            self._adapters.update((name, adapter) for name in self._token_chain(sequence, keys))

    def had(self, sequence: KVSequence, key: PrefixKey) -> bool:
        """Whether a sequence of the same owner had computed the block with this key."""
        (name,) = _named([key.digest], sequence.owner)
        return self._followed.get(name) is not None

    def num_common(self, sequence: KVSequence, index: int) -> int | None:
        """Return the number of tokens in the block at `index` shared with the newest sequence of the same owner and the
        same preceding blocks.

        None when there is no such sequence, or its block does not differ.
        """
        parent = self._keys.key(sequence, index - 1).digest if index else self._keys.root(sequence)
        (name,) = _named([parent], sequence.owner)
        behind = self._followed.get(name)
        if behind is None:
            return None
        earlier = array("I", behind)
        now = array("I", self._tokens(sequence, index))
        for place, (one, other) in enumerate(zip(earlier, now, strict=False)):
            if one != other:
                return place
        return None

    def others_had(self, sequence: KVSequence, index: int) -> bool:
        """Whether a sequence of another tenant had the same tokens up to the end of the block at `index`.

        False where reporting it is not allowed.
        """
        if not self.across_tenants:
            return False
        self._keys.key(sequence, index)
        chain = _chain(key.payload for key in sequence.prefix_keys[: index + 1])
        tenant = self._tenants.get(chain[-1])
        return tenant is not None and tenant != _tenant(sequence)

    def other_adapter_had(self, sequence: KVSequence, index: int) -> bool:
        """Whether the newest sequence of the same tenant with the same tokens, up to the end of the block at `index`,
        had another adapter, or none.
        """
        if not self.across_adapters:
            return False
        self._keys.key(sequence, index)
        chain = self._token_chain(sequence, sequence.prefix_keys[: index + 1])
        adapter = self._adapters.get(chain[-1])
        return adapter is not None and adapter != _adapter(sequence)

    def _token_chain(self, sequence: KVSequence, keys: list[PrefixKey]) -> list[bytes]:
        """Return names of a tenant's prefixes by their tokens, whatever the adapter."""
        return _chain(map(self._payload_tokens, keys), _tenant(sequence))

    def _payload_tokens(self, key: PrefixKey) -> bytes:
        """Return the token ids of a key's payload."""
        return key.payload[: TOKEN_BYTES * self._block_size]

    def _tokens(self, sequence: KVSequence, index: int) -> bytes:
        """Return the known tokens of a block, in the form of a key's payload."""
        start = index * self._block_size
        stop = start + self._block_size
        return array("I", sequence.token_ids[start:stop]).tobytes()


def _named(digests: list[bytes], owner: str) -> list[bytes]:
    """Return names that no two owners share. Without an owner the digests themselves are used, which are in memory
    anyway.
    """
    if not owner:
        return digests
    suffix = owner.encode()
    return [xxhash.xxh3_128_digest(digest + suffix) for digest in digests]


def _tenant(sequence: KVSequence) -> bytes:
    """Return the name of a salt and an owner."""
    salt = "" if sequence.cache_salt is None else f"salted:{sequence.cache_salt}"
    return xxhash.xxh3_64_digest(f"{len(salt)}:{salt}{sequence.owner}".encode())


def _adapter(sequence: KVSequence) -> bytes:
    """Return the digests of a sequence's adapter and media; empty for text of the base model."""
    extras = sequence.extras
    if extras is None:
        return b""
    media = "".join(f":{span.start}:{span.stop}:{span.digest}" for span in extras.media)
    return f"{extras.adapter}{media}".encode()


def _chain(payloads: Iterable[bytes], name: bytes = b"") -> list[bytes]:
    """Return names of prefixes by what their blocks hold. name: of the owner; empty: all owners share the names."""
    names: list[bytes] = []
    for payload in payloads:
        name = xxhash.xxh3_128_digest(name + payload)
        names.append(name)
    return names
