"""What earlier sequences had, as far as a bounded memory goes: which blocks, and what came behind them.

Owns: `PastPrefixes`. Never does: keep blocks, or judge. Called by: `MissFinder`, when a sequence leaves and when it looks for
the cause of a miss.

An entry says that a sequence of some owner had computed a block, and which tokens the newest such sequence had behind it.
What is told of an entry is told to its owner alone: the same salt and the same user. Entries are kept in two generations,
so the newest ones stay and nothing is ever sorted. A decode step does nothing here; a sequence that leaves costs a table
entry for each of its blocks, whose keys have been computed by then.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import xxhash

from core.api.kv_transfer import PrefixKey
from core.kv.block_keys import BlockKeys
from core.kv.sequence import KVSequence

ENTRY_BYTES = 240
"""Of an entry without its tokens, at most: names, headers and its place in the table."""

TOKEN_BYTES = array("I").itemsize

MAX_BYTES = 8 << 20
"""Of one generation of a table."""

MIN_ENTRIES = 4096
"""Of one generation: caches of a few blocks forget quickly, and here a block costs nearly nothing."""


class Generations:
    """A table that forgets its oldest entries. most: the newest so many are always there, and never twice as many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, name: bytes) -> bytes | None:
        """The newest value of a name."""
        found = self._young.get(name)
        return self._old.get(name) if found is None else found

    def update(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Add entries, the newest last."""
        for name, value in entries:
            if len(self._young) >= self._most:
                self._old = self._young
                self._young = {}
            self._young[name] = value


class PastPrefixes:
    """The past of sequences in blocks of `block_size` tokens.

    num_blocks: of the KV cache; the memory reaches about twice as far, within `MAX_BYTES`.
    across_tenants: also remember, whoever had it, which tokens were computed.
    """

    def __init__(self, keys: BlockKeys, block_size: int, num_blocks: int, *, across_tenants: bool = False) -> None:
        self.across_tenants = across_tenants
        self._keys = keys
        self._block_size = block_size
        entry_bytes = ENTRY_BYTES + TOKEN_BYTES * block_size
        wanted = max(2 * num_blocks, MIN_ENTRIES)
        most = min(wanted, MAX_BYTES // entry_bytes)
        self._followed = Generations(most)
        self._tenants = Generations(most)

    def remember(self, sequence: KVSequence) -> None:
        """A sequence loses its blocks; those that were offered to the prefix table are remembered."""
        keys = sequence.prefix_keys[: sequence.num_registered_blocks]
        parents = [self._keys.root(sequence), *(key.digest for key in keys)]
        tail = self._tokens(sequence, len(keys))
        behind = [*(key.payload for key in keys), tail]
        self._followed.update(zip(_named(parents, sequence.owner), behind, strict=True))
        if self.across_tenants:
            tenant = _tenant(sequence)
            self._tenants.update((name, tenant) for name in _chain(keys))

    def had(self, sequence: KVSequence, key: PrefixKey) -> bool:
        """Whether a sequence of the same owner had computed the block with this key."""
        (name,) = _named([key.digest], sequence.owner)
        return self._followed.get(name) is not None

    def num_common(self, sequence: KVSequence, index: int) -> int | None:
        """Tokens of the block at `index` that agree with the newest sequence of the same owner and the same blocks before it.

        None when there is none, or nothing in it differs.
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

        False where that may not be told.
        """
        if not self.across_tenants:
            return False
        self._keys.key(sequence, index)
        chain = _chain(sequence.prefix_keys[: index + 1])
        tenant = self._tenants.get(chain[-1])
        return tenant is not None and tenant != _tenant(sequence)

    def _tokens(self, sequence: KVSequence, index: int) -> bytes:
        """The known tokens of a block, in the form of a key's payload."""
        start = index * self._block_size
        stop = start + self._block_size
        return array("I", sequence.token_ids[start:stop]).tobytes()


def _named(digests: list[bytes], owner: str) -> list[bytes]:
    """Names that two owners never share. Without an owner the digests themselves will do, which are in memory anyway."""
    if not owner:
        return digests
    suffix = owner.encode()
    return [xxhash.xxh3_128_digest(digest + suffix) for digest in digests]


def _tenant(sequence: KVSequence) -> bytes:
    """Names a salt and an owner."""
    salt = "" if sequence.cache_salt is None else f"salted:{sequence.cache_salt}"
    return xxhash.xxh3_64_digest(f"{len(salt)}:{salt}{sequence.owner}".encode())


def _chain(keys: list[PrefixKey]) -> list[bytes]:
    """Names of prefixes by their tokens alone, whoever had them."""
    names: list[bytes] = []
    name = b""
    for key in keys:
        name = xxhash.xxh3_128_digest(name + key.payload)
        names.append(name)
    return names
