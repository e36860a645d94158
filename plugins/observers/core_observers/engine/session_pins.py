"""Pins: prefixes of sessions that are not evicted from the KV cache, and whose pages KV connectors hold.

Owns: `SessionPins`, an observer of the engine: which blocks are pinned, for whom, until when, and the share that pins may take.
Never does: know sessions (servers do, and pin a session's prefix again after each turn), load pages, or compute anything.
Called by: the engine core; servers, through its utilities.

Pins never stop the engine: where no sequence runs and one waits for blocks, the longest unused pin leaves the cache.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Any, Self

import msgspec

from core.engine.observer import Engine, EngineObserver, EngineStart
from core.kv.manager import KVManager
from core.scheduler.step import Step
from core_observers.engine.pinned_prefix import Pin, Prefix, blocks_in_pool, pages_of
from core_observers.engine.prefix_places import prefix_places

logger = logging.getLogger(__name__)

STARVED_STEPS = 3
"""Number of steps in a row without any computation after which a pin gives way."""

Key = tuple[str, str, str]
"""(server, tenant, name): what a pin is called."""


class SessionPins(EngineObserver):
    """All pins of one engine, the longest unused first. clock: returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._engine: Engine | None = None
        self._kv: KVManager | None = None
        self._pins: dict[Key, Pin] = {}
        self._ends: list[tuple[float, Key]] = []  # a heap; a pin that was renewed has older entries, too
        self._num_starved = 0

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Return the pins of an engine that caches prefixes."""
        return cls() if start.config.cache.enable_prefix_caching else None

    def attach(self, engine: Engine) -> None:
        """Keep the engine."""
        self._engine = engine

    def utilities(self, client: int) -> dict[str, Callable[..., Any]]:
        """Return the calls of one client."""
        return {
            "pin_prefix": partial(self.pin, client),
            "unpin_prefix": self.unpin,
            "prefix_places": self.places,
            "num_pins": self.num_pins,
        }

    def before_step(self) -> None:
        """Drop pins that have expired, or that keep everything else from running."""
        if not self._pins:
            return
        self._current()
        self._expire()
        self._num_starved += 1
        if self._num_starved > STARVED_STEPS and self._is_starving() and any(pin.blocks for pin in self._pins.values()):
            key, pin = next((key, pin) for key, pin in self._pins.items() if pin.blocks)
            logger.warning(
                "The pin of a session (%d blocks) gave way to a request that found no room.", len(pin.blocks)
            )
            self._leave_pool(key)

    def finished(self, step: Step) -> None:
        """Note that something was computed."""
        self._num_starved = 0

    def calling(self, method: str) -> None:
        """Drop all pins before the cache is reset, which no block in use may hinder."""
        if method == "reset_prefix_cache":
            self._drop_where(lambda key, pin: True)

    def client_gone(self, client: int) -> None:
        """Drop the pins of a client that is gone."""
        self._drop_where(lambda key, pin: pin.client == client)

    def pin(
        self, client: int, server: str, name: str, prefix: dict[str, Any], share: float, lifetime: float
    ) -> dict[str, Any]:
        """Pin what is in the KV cache of a prefix, in place of an earlier prefix of the same name, and its pages elsewhere.

        share: of the KV cache, and of each place of KV connectors, that all pins together may hold. Where they would hold more
            of the cache, another tenant's longest unused pin leaves it if that tenant holds more than this one; else this pin
            holds pages with connectors alone. If they have no room either, nothing changes.
        lifetime: seconds until it is dropped, unless it is pinned again.
        Returns `fits`, the bytes that this pin holds in the cache (`bytes`) and with connectors (`held`), and those that pins
        may hold in the cache (`room`).
        """
        given = msgspec.convert(prefix, Prefix)
        kv, engine = self._current(), self._running
        self._expire()
        key = (server, given.tenant, name)
        old = self._pins.pop(key, None)
        sequence = given.sequence()
        if old is not None and old.is_start_of(given):
            sequence.prefix_keys = list(old.sequence.prefix_keys)
        blocks = blocks_in_pool(kv, sequence, given.lengths)
        kv.pool.pin(blocks)
        new = self._pins[key] = Pin(given, sequence, blocks, client, share, self._clock() + lifetime)
        room = int(share * kv.pool.capacity)
        in_pool = self._make_room(given.tenant, room)
        if not in_pool:
            kv.pool.unpin(new.blocks)
            new.blocks = []
        is_held = self._hold(key, new)
        fits = in_pool or is_held
        if fits and not is_held:
            engine.kv_services.notify("release", key)  # what an earlier pin of this name held
        if not fits:
            del self._pins[key]
            if old is not None:
                old.expires, old.client = new.expires, client
                self._pins[key] = old
        elif old is not None:
            kv.pool.unpin(old.blocks)
        held = self._pins.get(key)
        heapq.heappush(self._ends, (new.expires, key))
        engine.has_news = True  # usage of the cache, of an engine that may be idle
        size = engine.executor.page_bytes
        found = {"bytes": 0, "held": 0} if held is None else self._bytes_of(held)
        return {"fits": fits, "room": room * size, **found}

    def unpin(self, server: str, name: str, tenant: str) -> bool:
        """Drop a pin; False if there is none."""
        self._current()
        key = (server, tenant, name)
        if key not in self._pins:
            return False
        self._drop(key)
        return True

    def places(self, server: str, name: str, prefix: dict[str, Any]) -> dict[str, Any]:
        """Return the bytes of a prefix by place (`places`), and those that the pin of this name holds (`pinned`)."""
        given = msgspec.convert(prefix, Prefix)
        kv, engine = self._current(), self._running
        size = engine.executor.page_bytes
        blocks = prefix_places(kv, engine.kv_services, given.sequence())
        pin = self._pins.get((server, given.tenant, name))
        found = {"bytes": 0, "held": 0} if pin is None else self._bytes_of(pin)
        places = {place: count * size for place, count in blocks.items()}
        return {"places": places, "pinned": found["bytes"], "held": found["held"]}

    def num_pins(self) -> list[int]:
        """Return the number of pins, and of the blocks that they hold."""
        self._current()
        return [len(self._pins), self._held(self._pins.values())]

    @property
    def _running(self) -> Engine:
        assert self._engine is not None, "the engine core has attached it"
        return self._engine

    def _current(self) -> KVManager:
        """Return the KV manager. The pins of an earlier one, whose blocks are gone, are forgotten."""
        kv = self._running.scheduler.kv
        if kv is not self._kv:
            self._kv = kv
            for key in self._pins:
                self._running.kv_services.notify("release", key)
            self._pins.clear()
        return kv

    def _is_starving(self) -> bool:
        """Whether sequences wait for blocks although none runs."""
        if self._running.is_halted:
            return False
        stats = self._running.scheduler.stats()
        return not stats.num_running and stats.num_waiting > stats.num_deferred

    def _make_room(self, tenant: str, room: int) -> bool:
        """Drop pins of tenants that hold more than this one, until all hold at most `room` blocks; False if that fails."""
        while self._held(self._pins.values()) > room:
            sizes = {owner: self._held_by(owner) for _, owner, _ in self._pins}
            largest = max(sizes, key=lambda owner: sizes[owner])
            if sizes[largest] <= sizes[tenant]:
                return False
            self._leave_pool(next(key for key, pin in self._pins.items() if key[1] == largest and pin.blocks))
        return True

    def _hold(self, key: Key, pin: Pin) -> bool:
        """Have KV connectors hold the pages of a pin; False where none has room, or none holds pages.

        Where they have no room, the longest unused pin goes of the tenant for which they hold most, if that is more than for
        this one.
        """
        services = self._running.kv_services
        pages = pages_of(self._current(), services, pin.sequence, pin.prefix.lengths, pin.blocks)
        pin.num_held = 0
        while (held := services.hold(key, pages, pin.share, pin.expires - self._clock())) is None:
            sizes: Counter[str] = Counter()
            for (_, owner, _), other in self._pins.items():
                sizes[owner] += other.num_held
            largest, size = max(sizes.items(), key=itemgetter(1))
            if size <= sizes[key[1]] + len(pages):
                return False
            self._drop(next(other for other, one in self._pins.items() if other[1] == largest and one.num_held))
        pin.num_held = held
        return True

    def _leave_pool(self, key: Key) -> None:
        """Let a pin hold pages with KV connectors alone; without room there it goes."""
        pin = self._pins[key]
        self._current().pool.unpin(pin.blocks)
        pin.blocks = []
        if not self._hold(key, pin):
            self._drop(key)

    def _bytes_of(self, pin: Pin) -> dict[str, int]:
        """Return the bytes that a pin holds in the pool, and with KV connectors."""
        size = self._running.executor.page_bytes
        return {"bytes": self._held([pin]) * size, "held": pin.num_held * size}

    def _held_by(self, tenant: str) -> int:
        return self._held(pin for (_, owner, _), pin in self._pins.items() if owner == tenant)

    def _held(self, pins: Iterable[Pin]) -> int:
        """Return the number of blocks that pins hold, each counted once."""
        kv = self._current()
        blocks = {block for pin in pins for block in pin.blocks}
        return sum(len(kv.pool.parts(block)) for block in blocks)

    def _expire(self) -> None:
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            _, key = heapq.heappop(self._ends)
            pin = self._pins.get(key)
            if pin is not None and pin.expires <= now:
                self._drop(key)

    def _drop_where(self, condition: Callable[[Key, Pin], bool]) -> None:
        self._current()
        for key in [key for key, pin in self._pins.items() if condition(key, pin)]:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        self._current().pool.unpin(self._pins.pop(key).blocks)
        self._running.kv_services.notify("release", key)
        self._running.has_news = True
