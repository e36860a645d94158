"""The scheduler's half of a KV connector whose other half moves the bytes.

Owns: `SplitConnector`, from which plugins inherit: which blocks a worker half loads and saves, and when they may be used.
Never does: touch the bytes of a block, or know where the plugin stores them. Called by: `KVConnectors`, and the observer of
worker halves, which connects the halves.

Blocks are loaded into free blocks of the pool beside the steps, and cached when the half has reported them; the sequence that
waits then finds them like any others. Cached blocks are saved soon after the step that filled them. Meanwhile a reference keeps
them in the pool: at most a quarter of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from core.api.config import EngineConfig
from core.api.kv_load import KVLoad
from core.api.kv_transfer import PrefixKey
from core.api.stats import SchedulerStats
from core.kv.connector import BlockCache, Copy, KVConnector
from core.kv.manager import KVManager
from core_kv_connectors.halves.contract import BlockName, Ticket
from core_kv_connectors.halves.link import Link
from core_kv_connectors.halves.loads import Loads
from core_kv_connectors.halves.saves import Saves
from core_kv_connectors.halves.slots import HeldBlocks
from core_kv_connectors.tiers.faults import Faults

POOL_SHARE: Final = 4
"""A half has at most one block in this many at a time, so that one that hangs leaves room for requests."""
LATE_S: Final = 10.0
"""Seconds after which a half counts as hanging: it gets no further work until it has reported what it has."""
PAUSE_MS: Final = 2
LATE_PAUSE_MS: Final = 1000


class SplitConnector(KVConnector):
    """A connector whose bytes move on their own. Override `lookup`, and what else the connector needs.

    As it is, `lookup` knows the pages that this engine has saved since its start.

    fingerprint: `context.options["fingerprint"]`. weights: what it returned last. num_saved, num_failed: saves since the start.
    """

    argument = "kv_connectors"

    def __init__(self, fingerprint: Callable[[], str]) -> None:
        self.weights = fingerprint()
        self.num_saved = 0
        self.num_failed = 0
        self._known: set[BlockName] = set()
        self._link: Link | None = None
        self._kv: KVManager | None = None
        self._held = HeldBlocks()
        self._loads = Loads(self._held, self._name, self.lookup)
        self._saves = Saves(self._held, self._name, self.lookup)
        self._last_report = 0.0
        self._faults = Faults()

    # --- for plugins to override ---

    def lookup(self, name: BlockName) -> bool:
        """Whether the place seems to have a page. Answer from memory: it is called for each block while a step is planned."""
        return name in self._known

    def ticket(self, names: Sequence[BlockName]) -> bytes:
        """Return what the worker half needs beside the names to load these pages, such as an address."""
        return b""

    def saved(self, name: BlockName) -> None:
        """Note that a page is stored."""
        self._known.add(name)

    def gone(self, name: BlockName) -> None:
        """Note that a page could not be loaded or stored, or must not be loaded again."""
        self._known.discard(name)

    # --- the observer of worker halves ---

    def connect(self, link: Link) -> None:
        """Take the link to the other half. Called once, before any step."""
        self._link = link

    def adopt(self, kv: KVManager) -> None:
        """Go on with the engine's KV manager, before anything is planned with a new one."""
        if kv is not self._kv:
            self._kv = kv
            # Saves too: a page that is still read must not change, or it would be stored with the bytes of others.
            self._held.move_to(kv.pool, [*self._loads.moving(), *self._saves.moved_to_pool()])

    def drop_arena(self) -> None:
        """Forget all transfers: the memory of the pool was released, and the half reports none of them."""
        self._loads.forget_moving()
        self._saves.forget_moving()
        self._held.forget()

    def settle(self, seconds: float) -> None:
        """Wait, for at most `seconds`, until the other half has reported all blocks. Nothing further is begun."""
        end = time.monotonic() + seconds
        while self.num_moving and time.monotonic() < end:
            if self._kv is None or self._link is None or self._link.half.error is not None:
                return
            time.sleep(PAUSE_MS / 1000)
            self._read_reports(self._kv, self._link)

    def leave(self) -> None:
        """Let go of blocks after the engine has left this connector out: those that a half still moves once it has ended."""
        self._saves.forget_waiting()
        self._loads.stop_all()
        if self.num_moving and self._link is not None and self._link.half.has_ended:
            self._held.let_go([*self._loads.moving(), *self._saves.held()])
            self._loads.forget_moving()
            self._saves.forget_moving()

    @property
    def num_moving(self) -> int:
        """Number of blocks that the other half has at the moment."""
        return len(self._loads) + len(self._saves)

    # --- look-up and loads ---

    def can_load(self) -> bool:
        """Whether the other half is there and reports in time."""
        return self._link is not None and not self._is_late

    def may_load(self, group: int, key: PrefixKey) -> bool:
        """Whether the place seems to have a block."""
        return self.lookup(self._name(group, key))

    def missing(self, key: PrefixKey) -> str:
        """Return `page_late` for a block whose page was there and did not come in time."""
        return self._faults.cause(key)

    def start_load(self, load: KVLoad) -> None:
        """Note which blocks a sequence lacks; they are loaded between steps."""
        self._loads.start(load)

    def is_loaded(self, load: KVLoad) -> bool:
        """Whether a load is done."""
        if self._kv is not None and self._link is not None:
            self._read_reports(self._kv, self._link)
        if load.is_done and self._loads.is_unread(load):
            self._faults.late(load)
        return load.is_done

    def end_load(self, load: KVLoad) -> None:
        """Stop a load; see `Loads.stop`."""
        self._loads.stop(load)
        load.finish()

    # --- events ---

    def stored(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """Note a block to save."""
        self._faults.forget(key)
        self._saves.stored(block_id, group, key, parent)

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """Note that a block cannot be saved any more."""
        self._saves.removed(block_id, group, key)
        if not valid:
            self.discard(group, key)

    def discard(self, group: int, key: PrefixKey) -> None:
        """Never load a page again, whose values are wrong."""
        self._drop({self._name(group, key)})

    def cleared(self) -> None:
        """Drop every page that this engine has saved."""
        self._saves.forget_waiting()
        self._drop({*self._known, *self._saves.names()})

    def pool_replaced(self) -> None:
        """Note that nothing is cached. Loads have ended; the blocks under way are taken in the new pool by `adopt`."""
        self._saves.forget_waiting()

    def use_weights(self, config: EngineConfig, fingerprint: Callable[[], str]) -> None:
        """Give later pages other names."""
        self.weights = fingerprint()

    # --- work ---

    def after_step(self, cache: BlockCache) -> None:
        """Begin loads and saves, and cache what was loaded. Raises what has ended the other half."""
        self._advance(cache)

    def save_idle(self, cache: BlockCache, copy: Copy) -> int | None:
        """Go on saving; see `KVConnector.save_idle`."""
        self._advance(cache)
        if self._is_late:
            return LATE_PAUSE_MS
        return PAUSE_MS if self._is_busy else None

    def save_all(self, cache: BlockCache, copy: Copy, seconds: float) -> None:
        """Save what is missing, for at most `seconds`."""
        end = time.monotonic() + seconds
        self._advance(cache)
        while self._is_busy and not self._is_late and time.monotonic() < end:
            time.sleep(PAUSE_MS / 1000)
            self._advance(cache)

    def report(self, stats: SchedulerStats) -> None:
        """Add the number of saved blocks."""
        stats.tier_saved += self.num_saved

    def close(self, timeout_s: float) -> None:
        """End the other half and its thread."""
        if self._link is not None:
            self._link.half.close(timeout_s)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless the blocks under way are pinned in the pool."""
        self._held.check_integrity()

    def _advance(self, cache: BlockCache) -> None:
        link = self._link
        if link is None:
            raise RuntimeError(
                "its worker half is not connected; install core-engine-observers, whose kv_halves does it"
            )
        assert isinstance(cache, KVManager), "the engine's cache is its KV manager"
        self.adopt(cache)
        self._read_reports(cache, link)
        if self._is_late:
            return
        its_round = self._loads.next_round(cache, link, self._room(cache))
        while its_round is not None:
            self._note_work(len(its_round.slots))
            lacking = self._loads.names(its_round)
            link.half.load(Ticket(lacking, self.ticket(lacking)), its_round.slots)
            its_round = self._loads.next_round(cache, link, self._room(cache))
        slots, names = self._saves.take(cache, link, self._room(cache))
        if slots:
            self._note_work(len(slots))
            link.half.save(slots, names)

    def _read_reports(self, kv: KVManager, link: Link) -> None:
        """Take the reports of the other half, and cache the blocks of rounds that are over."""
        let_go: list[int] = []
        for slot, is_done in link.half.poll():
            self._last_report = time.monotonic()
            if slot in self._loads.moving():
                self._loads.end(slot, is_done=is_done)
            elif slot in self._saves.moving():
                name, held, is_stored = self._saves.end(slot, is_done=is_done)
                let_go.append(held)
                self.num_saved += is_stored
                self.num_failed += not is_stored
                (self.saved if is_stored else self.gone)(name)
        self._held.let_go(reversed(let_go))  # the tail of a prefix is to be evicted before its head
        for name in self._loads.finish_rounds(kv):
            self.gone(name)

    def _drop(self, names: set[BlockName]) -> None:
        self._saves.void(names)
        for name in names:
            self.gone(name)
        if self._link is not None:
            self._link.half.drop(list(names))

    def _note_work(self, count: int) -> None:
        """Begin to wait for a report, where the other half had nothing to do before these blocks."""
        if self.num_moving <= count:
            self._last_report = time.monotonic()

    def _room(self, kv: KVManager) -> int:
        """Number of further blocks that the other half may have."""
        return max(kv.pool.capacity // POOL_SHARE, 1) - self._loads.num_taken - len(self._saves)

    def _name(self, group: int, key: PrefixKey) -> BlockName:
        return BlockName(self.weights, group, key.digest, key.payload)

    @property
    def _is_busy(self) -> bool:
        return bool(self.num_moving or self._loads.is_waiting or self._saves.is_waiting)

    @property
    def _is_late(self) -> bool:
        """Whether the other half has blocks and has reported none for too long."""
        return self.num_moving > 0 and time.monotonic() - self._last_report > LATE_S
