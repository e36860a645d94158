"""KV events: messages about the prefix cache for routers.

Owns: the wire types and `EventLog`, which collects them. Never does: send (`core_kv_connectors.event_publisher` does).
Called by: the manager (through its observers) and the publisher.

The schema is that of vLLM's KV events: msgpack arrays, an event's first item is its name. Events describe the first
group of layers with keys, and states: a prefix hit needs both. Events of states name their group, so that one of them is
not taken for the other. Block hashes are the digests of the configured algorithm, as bytes.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence

import msgspec

from core.api.kv_transfer import PrefixKey
from core.api.specs import KVGroup
from core.kv.connector import KVConnector


class BlockStored(msgspec.Struct, array_like=True, omit_defaults=True, tag="BlockStored", gc=False):
    """Event: blocks became available.

    block_hashes: one each, each the parent of the next.
    parent_block_hash: of the block before the first one; None at a prompt's start.
    token_ids: of all blocks, one after the other.
    block_size: tokens of each.
    lora_id: always None; the digest of an adapter is part of the hashes.
    """

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None


class StateStored(BlockStored, array_like=True, tag="BlockStored", gc=False):
    """Event: the states after blocks became available.

    medium, lora_name, extra_keys: always None. group_idx: group of layers with the state.
    kv_cache_spec_kind: vLLM's word for layers with a state of any kind.
    """

    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[None] | None = None
    group_idx: int = 0
    kv_cache_spec_kind: str = "mamba"


class BlockRemoved(msgspec.Struct, array_like=True, omit_defaults=True, tag="BlockRemoved", gc=False):
    """Event: blocks are no longer available."""

    block_hashes: list[bytes]


class StateRemoved(BlockRemoved, array_like=True, tag="BlockRemoved", gc=False):
    """Event: the states after blocks are no longer available. Fields: as of `StateStored`."""

    medium: str | None = None
    group_idx: int = 0


class AllBlocksCleared(msgspec.Struct, array_like=True, omit_defaults=True, tag="AllBlocksCleared", gc=False):
    """Event: no block is available any more."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """The events of one step.

    ts: seconds since the epoch.
    """

    ts: float
    events: list[KVEvent]


class EventLog(KVConnector):
    """Collects events until they are taken; a connector without pages.

    groups: groups of layers that share a block table; empty: all share one.
    """

    def __init__(self, block_size: int, groups: Sequence[KVGroup] = ()) -> None:
        self.block_size = block_size
        self._events: list[KVEvent] = []
        states = [index for index, group in enumerate(groups) if group.kind == "state"]
        # The pages of a state follow the groups; the first stands for all, because they come and go together.
        self._state_page = len(groups) if states else -1
        self._state_group = states[0] if states else -1
        # A state is reported by each sequence that has passed it, and not at all while a newer one may replace it.
        self._states: set[bytes] = set()

    def stored(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """Add a stored block; consecutive blocks of one sequence are merged into one event."""
        token_ids = array("I", key.payload[: 4 * self.block_size]).tolist()
        if group == self._state_page:
            if key.digest not in self._states:
                self._states.add(key.digest)
                of_group = self._state_group
                self._events.append(
                    StateStored([key.digest], parent, token_ids, self.block_size, None, group_idx=of_group)
                )
            return
        if group:
            return
        last = self._events[-1] if self._events else None
        if type(last) is BlockStored and last.block_hashes[-1] == parent:
            last.block_hashes.append(key.digest)
            last.token_ids += token_ids
            return
        event = BlockStored([key.digest], parent, token_ids, self.block_size, None)
        self._events.append(event)

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """Add a removed block; consecutive removals are merged into one event."""
        if group == self._state_page:
            if key.digest in self._states:
                self._states.remove(key.digest)
                self._events.append(StateRemoved([key.digest], group_idx=self._state_group))
            return
        if group:
            return
        last = self._events[-1] if self._events else None
        if type(last) is BlockRemoved:
            last.block_hashes.append(key.digest)
        else:
            self._events.append(BlockRemoved([key.digest]))

    def cleared(self) -> None:
        """Add the removal of all blocks."""
        self._states.clear()
        self._events.append(AllBlocksCleared())

    def take(self) -> KVEventBatch | None:
        """Return the events since the last call, or None if there are none."""
        if not self._events:
            return None
        events = self._events
        self._events = []
        return KVEventBatch(time.time(), events)
