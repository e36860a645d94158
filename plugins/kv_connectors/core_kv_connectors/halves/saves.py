"""Blocks that the worker half of a connector is to store, and those that it stores at the moment.

Owns: `Saves`: which cached blocks no step writes any more, and in what order they are stored. Never does: call the worker half.
Called by: `SplitConnector`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from core.api.kv_transfer import PrefixKey
from core.kv.manager import KVManager
from core_kv_connectors.halves.contract import BlockName
from core_kv_connectors.halves.link import Link
from core_kv_connectors.halves.slots import HeldBlocks
from core_kv_connectors.tiers.unsaved import AT_ONCE, Unsaved

Cached = dict[int, tuple[int, PrefixKey, bytes | None]]
"""Block id → group, key and digest of the preceding block."""
NONE_IN_FLIGHT: Final = 0


class Saves:
    """The saves of one connector. held: its references. name_of: returns the name of a block. is_stored: see `lookup`."""

    def __init__(
        self,
        held: HeldBlocks,
        name_of: Callable[[int, PrefixKey], BlockName],
        is_stored: Callable[[BlockName], bool],
    ) -> None:
        self._held = held
        self._name_of = name_of
        self._is_stored = is_stored
        self._fresh: Cached = {}
        self._written: list[tuple[int, Cached]] = []
        self._unsaved = Unsaved()
        self._moving: dict[int, tuple[BlockName, int, bool]] = {}

    def __len__(self) -> int:
        return len(self._moving)

    @property
    def is_waiting(self) -> bool:
        """Whether blocks wait to be stored."""
        return bool(self._fresh or self._written or len(self._unsaved))

    def moving(self) -> Collection[int]:
        """Return the blocks that the worker half reads."""
        return self._moving.keys()

    def held(self) -> list[int]:
        """Return the blocks that are held for those."""
        return [held for _, held, _ in self._moving.values()]

    def moved_to_pool(self) -> Collection[int]:
        """Return the blocks to hold in a pool that replaces the earlier one, where each is one by itself."""
        self._moving = {slot: (name, slot, is_wanted) for slot, (name, _, is_wanted) in self._moving.items()}
        return self._moving.keys()

    def names(self) -> list[BlockName]:
        """Return the names of the blocks that the worker half reads."""
        return [name for name, _, _ in self._moving.values()]

    def stored(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """Note a block that is cached from now on."""
        self._fresh[block_id] = (group, key, parent)

    def removed(self, block_id: int, group: int, key: PrefixKey) -> None:
        """Note that a block is no longer cached."""
        self._fresh.pop(block_id, None)
        for _, blocks in self._written:
            blocks.pop(block_id, None)
        self._unsaved.removed(block_id, group, key)

    def forget_waiting(self) -> None:
        """Note that nothing is cached any more."""
        self._fresh = {}
        self._written = []
        self._unsaved.clear()

    def forget_moving(self) -> None:
        """Forget what the worker half reads: it reports none of it."""
        self._moving.clear()

    def void(self, names: Collection[BlockName]) -> None:
        """Let blocks under way count as failed, whatever the half reports: their values are not wanted."""
        for slot, (name, held, _) in self._moving.items():
            if name in names:
                self._moving[slot] = (name, held, False)

    def take(self, kv: KVManager, link: Link, room: int) -> tuple[list[int], list[BlockName]]:
        """Return up to `room` blocks to store, the newest prefix first, with their names; they are held until `end`."""
        kv.register_starting()
        self._ripen(kv, link)
        slots: list[int] = []
        names: list[BlockName] = []
        # Those of one prefix at a time: blocks that come back together keep their order, the tail of a prefix before its head.
        while len(slots) < min(room, AT_ONCE):
            block = self._unsaved.take()
            if block is None:
                break
            slot, group, key = block
            name = self._name_of(group, key)
            # Pages of a state have groups after those of the tables, and are one entry of the last table.
            first = kv.pool.prefixes.find(key, min(group, len(kv.groups)))
            if first is None or slot not in kv.pool.parts(first) or slot in self._moving or self._is_stored(name):
                continue
            self._held.hold(first)
            self._moving[slot] = (name, first, True)
            slots.append(slot)
            names.append(name)
        return slots, names

    def end(self, slot: int, *, is_done: bool) -> tuple[BlockName, int, bool]:
        """Return the name of a block that the half has reported, the block to let go of, and whether its page is stored."""
        name, held, is_wanted = self._moving.pop(slot)
        return name, held, is_done and is_wanted

    def _ripen(self, kv: KVManager, link: Link) -> None:
        """Let blocks be stored once the steps that were in flight when they were cached have ended: these may write them."""
        in_flight = link.in_flight()
        pending = kv.pool.pending  # blocks that the next plan fills
        ready = {block_id: block for block_id, block in self._fresh.items() if block_id not in pending}
        self._fresh = {block_id: block for block_id, block in self._fresh.items() if block_id in pending}
        if ready:
            self._written.append((NONE_IN_FLIGHT if in_flight is None else in_flight[1], ready))
        while self._written and (in_flight is None or in_flight[0] > self._written[0][0]):
            for block_id, (group, key, parent) in self._written.pop(0)[1].items():
                self._unsaved.cached(block_id, group, key, parent)
