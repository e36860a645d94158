"""Loads that a worker half makes straight into blocks of the pool.

Owns: `Loads`: which blocks each waiting sequence lacks, the blocks that are filled for it, and when they are cached. Never
does: plan a step, or verify a page. Called by: `SplitConnector`.

A load is made in rounds, so that it takes few blocks at a time. The blocks of a round are filled once nothing else reads or
writes them: steps in flight may still write for a sequence that has left, and a plan has yet to save what was evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from core.api.kv_load import Entry, KVLoad
from core.api.kv_transfer import PrefixKey
from core.kv.eviction import worth_of
from core.kv.manager import KVManager
from core_kv_connectors.halves.contract import BlockName
from core_kv_connectors.halves.link import Link
from core_kv_connectors.halves.slots import HeldBlocks


@dataclass(slots=True, eq=False)
class Round:
    """Blocks that are filled together.

    entries, slots: what they are for, and their ids. after: number of the newest step in flight when they were taken.
    leaving: evicted blocks whose bytes are in them until a plan has saved these. reports: what became of each slot so far.
    """

    entries: list[Entry]
    slots: list[int]
    after: int
    leaving: frozenset[tuple[int, bytes]]
    is_sent: bool = False
    reports: dict[int, bool] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Loading:
    """One load. entries: all that the prefix needs. lacking: what is still to be loaded, the head first.

    head: blocks that are held so that they stay cached. state: blocks with pages of the state, in order.
    """

    load: KVLoad
    entries: list[Entry]
    lacking: list[Entry]
    head: list[int] = field(default_factory=list)
    state: list[int] = field(default_factory=list)
    current: Round | None = None
    has_failed: bool = False


class Loads:
    """The loads of one connector. held: its references. name_of: returns the name of a block. is_stored: see `lookup`."""

    def __init__(
        self,
        held: HeldBlocks,
        name_of: Callable[[int, PrefixKey], BlockName],
        is_stored: Callable[[BlockName], bool],
    ) -> None:
        self._held = held
        self._name_of = name_of
        self._is_stored = is_stored
        self._loads: dict[KVLoad, Loading] = {}
        self._moving: dict[int, Round | None] = {}

    def __len__(self) -> int:
        return len(self._moving)

    @property
    def is_waiting(self) -> bool:
        """Whether sequences wait."""
        return bool(self._loads)

    @property
    def num_taken(self) -> int:
        """Number of blocks that are filled, or are about to be."""
        rounds = [one.current for one in self._loads.values() if one.current is not None and not one.current.is_sent]
        return len(self._moving) + sum(len(one.slots) for one in rounds)

    def moving(self) -> Collection[int]:
        """Return the blocks that the worker half writes."""
        return self._moving.keys()

    def forget_moving(self) -> None:
        """Forget what the worker half writes: it reports none of it."""
        self._moving.clear()

    def start(self, load: KVLoad) -> None:
        """Note which blocks a sequence lacks. Ends the load when the place has none of them."""

        def has(group: int, index: int) -> bool:
            return load.has(group, index) or self._is_stored(self._name_of(group, load.keys[index]))

        entries = list(load.needs.entries(load.needs.longest(len(load.keys), has)))
        lacking = [entry for entry in entries if not load.has(*entry)]
        if lacking:
            self._loads[load] = Loading(load, entries, lacking)
        else:
            load.finish()

    def stop(self, load: KVLoad) -> None:
        """End a load early. Blocks that the half still fills are free once it has reported them."""
        loading = self._loads.pop(load, None)
        if loading is None:
            return
        if loading.current is not None:
            for slot in loading.current.slots:
                if slot in self._moving:
                    self._moving[slot] = None
                else:
                    self._held.let_go([slot])
        self._let_go(loading)

    def is_unread(self, load: KVLoad) -> bool:
        """Whether blocks of a load have not been reported, or not even been asked for."""
        return load in self._loads

    def stop_all(self) -> None:
        """End all loads; see `stop`."""
        for load in list(self._loads):
            self.stop(load)
            load.finish()

    def next_round(self, kv: KVManager, link: Link, room: int) -> Round | None:
        """Return a round to be sent now, whose load is not over; None: there is none. room: limit on blocks that it takes."""
        for loading in self._loads.values():
            if loading.load.is_done:
                continue
            if loading.current is None:
                loading.current = self._round(kv, link, loading, min(room, kv.pool.num_free // 2))
            its_round = loading.current
            if its_round is not None and not its_round.is_sent and _is_quiet(kv, link, its_round):
                its_round.is_sent = True
                self._moving.update(dict.fromkeys(its_round.slots, its_round))
                return its_round
            room -= 0 if its_round is None or its_round.is_sent else len(its_round.slots)
        return None

    def names(self, its_round: Round) -> tuple[BlockName, ...]:
        """Return the names of a round's blocks."""
        load = next(one.load for one in self._loads.values() if one.current is its_round)
        return tuple(self._name_of(group, load.keys[index]) for group, index in its_round.entries)

    def end(self, slot: int, *, is_done: bool) -> None:
        """Take the report of a block."""
        its_round = self._moving.pop(slot)
        if its_round is None:
            self._held.let_go([slot])
        else:
            its_round.reports[slot] = is_done

    def finish_rounds(self, kv: KVManager) -> list[BlockName]:
        """Cache the blocks of rounds that are over, and end loads that lack nothing; returns the pages that did not come."""
        missing: list[BlockName] = []
        for loading in list(self._loads.values()):
            its_round = loading.current
            if its_round is None or len(its_round.reports) < len(its_round.slots):
                continue
            loading.current = None
            missing += self._cache_round(kv, loading, its_round)
            # After a page that did not come a longer prefix is of no use.
            if loading.has_failed or not loading.lacking:
                self._cache_state(kv, loading)
                self._let_go(loading)
                del self._loads[loading.load]
                loading.load.finish()
        return missing

    def _round(self, kv: KVManager, link: Link, loading: Loading, room: int) -> Round | None:
        """Take blocks for the next part of a load; None: there is no room, or copies are due that a later plan makes."""
        # Those copies read blocks that may be free already.
        if room <= 0 or kv.pool.pending:
            return None
        if not loading.head:
            self._hold_head(kv, loading)
        count = min(room, len(loading.lacking), kv.pool.num_free)
        if not count:
            return None
        leaving = kv.connectors.copies.leaving
        before = set(leaving)
        slots = self._held.take(count)
        entries, loading.lacking = loading.lacking[:count], loading.lacking[count:]
        in_flight = link.in_flight()
        return Round(entries, slots, 0 if in_flight is None else in_flight[1], frozenset(leaving - before))

    def _hold_head(self, kv: KVManager, loading: Loading) -> None:
        """Keep the cached part of the prefix from giving way to the rest of it."""
        for group, index in loading.entries:
            block_id = kv.pool.prefixes.find(loading.load.keys[index], min(group, len(kv.groups)))
            if block_id is not None and block_id not in loading.head:
                self._held.hold(block_id)
                loading.head.append(block_id)

    def _cache_round(self, kv: KVManager, loading: Loading, its_round: Round) -> list[BlockName]:
        """Cache the blocks that were filled, free the others; returns the names of those."""
        missing: list[BlockName] = []
        for entry, slot in zip(its_round.entries, its_round.slots, strict=True):
            group, index = entry
            if not its_round.reports[slot]:
                loading.has_failed = True
                missing.append(self._name_of(group, loading.load.keys[index]))
                self._held.let_go([slot])
            elif group >= len(kv.groups):
                loading.state.append(slot)
            else:
                loading.head.append(slot)
                _cache(kv, loading.load, entry, [slot])
        return missing

    def _cache_state(self, kv: KVManager, loading: Loading) -> None:
        """Cache the pages of a state as one entry, if all have come."""
        pages = loading.state
        if len(pages) < kv.states.num_blocks or not pages:
            return
        entry = next(entry for entry in loading.entries if entry[0] == len(kv.groups))
        if _cache(kv, loading.load, entry, pages):
            self._held.join(pages)
            loading.state = pages[:1]

    def _let_go(self, loading: Loading) -> None:
        """Drop the references of a load. What is cached stays so, the tail to be evicted before the head."""
        self._held.let_go([*loading.state, *reversed(loading.head)])


def _is_quiet(kv: KVManager, link: Link, its_round: Round) -> bool:
    """Whether no step in flight may write the blocks of a round, and what they had is saved."""
    in_flight = link.in_flight()
    if in_flight is not None and in_flight[0] <= its_round.after:
        return False
    leaving = kv.connectors.copies.leaving
    if in_flight is None and not its_round.leaving.isdisjoint(leaving):
        kv.copy_now(link.copy)
    return its_round.leaving.isdisjoint(leaving)


def _cache(kv: KVManager, load: KVLoad, entry: Entry, slots: Sequence[int]) -> bool:
    """Cache blocks as one entry, and report them; False where another sequence has computed the same meanwhile."""
    group, index = entry
    key = load.keys[index]
    if not kv.pool.cache(key, slots[0], group, worth=worth_of(len(load.keys) * kv.block_size), size=len(slots)):
        return False
    if group == 0:
        kv.num_external_tokens += kv.block_size
    parent = load.keys[index - 1].digest if index else None
    for place, slot in enumerate(slots):
        for observer in kv.pool.observers:
            observer.stored(slot, group + place, key, parent)
    return True
