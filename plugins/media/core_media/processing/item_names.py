"""The ids that clients give items: which processed item an id stands for.

Owns: `ItemNames`, and its limit. Never does: keep an item (the pool's cache does). Called by: the caches of the pool.

An id stands for the item that was first sent with it, until that leaves the cache. So the keys of cached blocks are those of
the item's bytes, whatever was sent under its id later.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import msgspec

MOST_NAMES: Final = 1 << 16
"""Most ids that are known: 64 bytes each, beside those of the dictionary."""


class ItemName(msgspec.Struct, frozen=True):
    """What must be equal for an id to stand for an item.

    owner: tenant of the request, since tenants share no ids. uuid: as the client wrote it.
    modality, options, company: see `Job`.
    """

    owner: str
    uuid: str
    modality: str
    options: Mapping[str, Any] = {}
    company: bool = False


class ItemNames:
    """The ids of one server, newest last."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, bytes] = OrderedDict()

    def get(self, name: ItemName) -> bytes | None:
        """Return the key in the cache of the item that an id stands for."""
        digest = digest_of_name(name)
        key = self._keys.get(digest)
        if key is not None:
            self._keys.move_to_end(digest)
        return key

    def put(self, name: ItemName, key: bytes) -> None:
        """Let an id stand for an item; the oldest ids leave."""
        digest = digest_of_name(name)
        self._keys[digest] = key
        self._keys.move_to_end(digest)
        while len(self._keys) > MOST_NAMES:
            self._keys.popitem(last=False)

    def clear(self) -> None:
        """Forget all ids."""
        self._keys.clear()


def digest_of_name(name: ItemName) -> bytes:
    """Return the sha256 by which an id is known."""
    return hashlib.sha256(msgspec.msgpack.encode(name, order="deterministic")).digest()
