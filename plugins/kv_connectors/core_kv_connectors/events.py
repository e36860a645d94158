"""KV events: messages about cached blocks for routers and indexers.

Owns: the wire types and `EventLog`, which collects them. Never does: send (`core_kv_connectors.event_publisher` does).
Called by: the manager (through its observers) and the publisher.

The schema is that of vLLM's KV events: msgpack arrays, an event's first item is its name. Each event is of one group of layers,
whose kind and window it names, since a hit needs the blocks of every group; and of one medium. Block hashes are the digests of
the configured algorithm, as bytes; with `sha256_cbor_64bit`, the number in their last 8 bytes, here alone.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from core.api.kv_transfer import PrefixKey
from core.api.specs import KVGroup
from core.kv.connector import KVConnector

KV_CACHE: Final = "GPU"
"""vLLM's name for the medium of the KV cache, whatever device has it."""
HOST_MEMORY: Final = "CPU"
KINDS: Final = {"full": "full_attention", "sliding": "sliding_window", "state": "mamba"}
"""Kinds of groups → vLLM's names for them."""
SHORT: Final = "sha256_cbor_64bit"
"""The algorithm whose hashes are shortened in events."""

BlockHash = bytes | int


class BlockStored(msgspec.Struct, array_like=True, omit_defaults=True, tag="BlockStored", gc=False):
    """Event: blocks became available.

    block_hashes: one each, each the parent of the next.
    parent_block_hash: of the block before the first one; None at a prompt's start.
    token_ids: of all blocks, one after the other.
    In other media than the KV cache blocks come in any order, without parent and tokens, which the event of the KV cache had.
    block_size: tokens of each.
    lora_id, lora_name, extra_keys: always None; the digest of an adapter is part of the hashes.
    medium: KV_CACHE, HOST_MEMORY, or the `medium` of a connector with a slow place. group_idx: group of layers.
    kv_cache_spec_kind: one of KINDS. kv_cache_spec_sliding_window: tokens that a query sees, itself included.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, array_like=True, omit_defaults=True, tag="BlockRemoved", gc=False):
    """Event: blocks are no longer available in a medium. Fields: as of `BlockStored`."""

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, array_like=True, omit_defaults=True, tag="AllBlocksCleared", gc=False):
    """Event: no block is available any more, in any medium."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """The events of one step.

    ts: seconds since the epoch.
    """

    ts: float
    events: list[KVEvent]


class EventGroup(NamedTuple):
    """A group as events name it. number: of the group. kind: one of `KINDS`. window: of a sliding group, in tokens."""

    number: int
    kind: str
    window: int | None = None


class EventLog(KVConnector):
    """Collects events until they are taken; a connector without pages.

    groups: groups of layers that share a block table; empty: all share one. shortens: whether hashes are numbers of 64 bits.
    """

    def __init__(self, block_size: int, groups: Sequence[KVGroup] = (), *, shortens: bool = False) -> None:
        self.block_size = block_size
        self._shortens = shortens
        self._events: list[KVEvent] = []
        self._groups = _named(groups)
        self._state_page = len(groups) if any(group.kind == "state" for group in groups) else -1
        # A state is reported by each sequence that has passed it, and not at all while a newer one may replace it.
        self._states: set[bytes] = set()
        self._pages: dict[str, dict[tuple[int, bytes], None]] = {}
        self._open: dict[tuple[str, int], KVEvent] = {}

    def stored(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """Add a block of the KV cache; consecutive blocks of one sequence and group are merged into one event."""
        if group not in self._groups:
            return
        if group == self._state_page:
            if key.digest in self._states:
                return
            self._states.add(key.digest)
        token_ids = array("I", key.payload[: 4 * self.block_size]).tolist()
        before = None if parent is None else self._hash(parent)
        last = self._open.get((KV_CACHE, group))
        if type(last) is BlockStored and last.block_hashes[-1] == before:
            last.block_hashes.append(self._hash(key.digest))
            last.token_ids += token_ids
            return
        self._store(KV_CACHE, group, key.digest, before, token_ids)

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """Add a block that has left the KV cache; consecutive removals are merged into one event."""
        if group == self._state_page:
            if key.digest not in self._states:
                return
            self._states.remove(key.digest)
        self._remove(KV_CACHE, group, key.digest)

    def host_stored(self, group: int, digest: bytes) -> None:
        """Add a page in host memory."""
        self.page_stored(HOST_MEMORY, group, digest)

    def host_removed(self, pages: Iterable[tuple[int, bytes]]) -> None:
        """Add pages (group, digest) that have left host memory."""
        for group, digest in pages:
            self.page_removed(HOST_MEMORY, group, digest)

    def page_stored(self, medium: str, group: int, digest: bytes) -> None:
        """Add a page of a medium other than the KV cache, unless it is there."""
        pages = self._pages.setdefault(medium, {})
        if group in self._groups and (group, digest) not in pages:
            pages[group, digest] = None
            self._store_page(medium, group, digest)

    def page_removed(self, medium: str, group: int, digest: bytes) -> None:
        """Add that a page has left a medium, if it was there."""
        pages = self._pages.setdefault(medium, {})
        if (group, digest) in pages:
            del pages[group, digest]
            self._remove(medium, group, digest)

    def cleared(self) -> None:
        """Add the removal of all blocks, in every medium."""
        self._states.clear()
        self._pages.clear()
        self._open.clear()
        self._events.append(AllBlocksCleared())

    def pool_replaced(self) -> None:
        """Add the removal of the blocks in the KV cache: the pool is another one, and other media have kept their pages."""
        kept = [(medium, page) for medium, pages in self._pages.items() for page in pages]
        self.cleared()
        for medium, page in kept:
            self.page_stored(medium, *page)

    def take(self) -> KVEventBatch | None:
        """Return the events since the last call, or None if there are none."""
        if not self._events:
            return None
        events = self._events
        self._events = []
        self._open.clear()
        return KVEventBatch(time.time(), events)

    def _hash(self, digest: bytes) -> BlockHash:
        return int.from_bytes(digest[-8:], "big") if self._shortens else digest

    def _store_page(self, medium: str, group: int, digest: bytes) -> None:
        last = self._open.get((medium, group))
        if type(last) is BlockStored:
            last.block_hashes.append(self._hash(digest))
            return
        self._store(medium, group, digest, None, [])

    def _store(self, medium: str, group: int, digest: bytes, parent: BlockHash | None, token_ids: list[int]) -> None:
        """Begin an event, to which the next blocks of the medium and group may be added."""
        named = self._groups[group]
        event = BlockStored(
            [self._hash(digest)],
            parent,
            token_ids,
            self.block_size,
            None,
            medium,
            group_idx=named.number,
            kv_cache_spec_kind=named.kind,
            kv_cache_spec_sliding_window=named.window,
        )
        self._add(medium, group, event)

    def _remove(self, medium: str, group: int, digest: bytes) -> None:
        named = self._groups.get(group)
        if named is None:
            return
        last = self._open.get((medium, group))
        if type(last) is BlockRemoved:
            last.block_hashes.append(self._hash(digest))
        else:
            self._add(medium, group, BlockRemoved([self._hash(digest)], medium, named.number))

    def _add(self, medium: str, group: int, event: KVEvent) -> None:
        self._events.append(event)
        self._open[medium, group] = event


def _named(groups: Sequence[KVGroup]) -> dict[int, EventGroup]:
    """Return the groups by the number under which their blocks are reported; other numbers stand for no event."""
    found = {
        index: EventGroup(index, KINDS[group.kind], group.window)
        for index, group in enumerate(groups or (KVGroup("full", ()),))
        if group.kind != "state"
    }
    states = [index for index, group in enumerate(groups) if group.kind == "state"]
    if states:
        # The pages of a state follow the groups; the first stands for all, because they come and go together.
        found[len(groups)] = EventGroup(states[0], KINDS["state"])
    return found
