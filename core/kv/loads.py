"""The waits of sequences for pages, for copies and for keys.

Owns: `Loads`: which load waits for whom, how long, and which are over. Never does: read pages, hash, or know sequences. Called
by: the prefix search (begins them), the scheduler (asks which are over), `core.kv.connectors` and threads of connectors.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from core.api.kv_load import KVLoad
from core.kv.connector import KVConnector

logger = logging.getLogger(__name__)

MAX_LOAD_S = 10.0
"""Limit on a wait, in seconds since any load of its connector was done; the sequence is then computed with what has come."""

ASK_S = 0.001
"""Seconds between two questions whether the oldest load is done."""


class Loads:
    """The waits of one engine; it outlives the managers that use it.

    call: calls a method of a connector, as `KVConnectors` does. clock: returns seconds.

    news: ends the current `wait` when it is set, which may be done from any thread.
    owners: connectors of the loads that have not ended; `copying` stands for copies in flight.
    """

    def __init__(self, call: Callable[..., Any], clock: Callable[[], float]) -> None:
        self._call = call
        self._clock = clock
        self.news = threading.Event()
        self.copying, self._hashing = KVConnector(), KVConnector()
        self._done: deque[KVLoad] = deque()
        self.owners: OrderedDict[KVLoad, KVConnector] = OrderedDict()
        self._last_done: dict[int, float] = {}
        self._next_ask = self._quiet_until = 0.0
        self.hasher = ThreadPoolExecutor(1, "kv-keys")  # starts with the first long prompt

    def start(self, connector: KVConnector, load: KVLoad) -> None:
        """Have a connector fill a load."""
        self._begin(connector, load)
        self._call(connector, "start_load", load)

    def await_copies(self, load: KVLoad) -> None:
        """Finish a load when copies arrive: pages that it needs are on their way from evicted blocks to a connector."""
        self._begin(self.copying, load)

    def await_keys(self, load: KVLoad, hash_all: Callable[[], None]) -> None:
        """Finish a load when a thread has called `hash_all`."""

        def work() -> None:
            try:
                hash_all()
            except Exception as error:  # its sequence goes on without: a step hashes
                logger.error("Keys of a prompt could not be hashed ahead.", exc_info=error)
            load.finish()

        self._begin(self._hashing, load)
        self.hasher.submit(work)

    def done(self, load: KVLoad) -> None:
        """Note that a load is done. May be called from any thread."""
        self._done.append(load)
        self.news.set()

    def wait(self, timeout_s: float) -> None:
        """Block until a load is done, but at most `timeout_s` seconds."""
        if self.news.wait(timeout_s):
            # A load that finishes just before this line is not lost: the caller checks every load after the wait.
            self.news.clear()

    def over(self) -> list[KVLoad]:
        """Return loads that are over since the last call. Of all others the oldest is asked, since it is late first: O(1)."""
        asked = [self._done.popleft() for _ in range(len(self._done))]
        if self.owners and (now := self._clock()) >= self._next_ask:
            self._next_ask = now + ASK_S
            asked.append(next(iter(self.owners)))
        over = [load for load in asked if self.is_over(load)]
        for load in over:
            if load in self.owners:  # until its pages are used, which may take long where slots are taken
                self.owners.move_to_end(load)
        return over

    def is_over(self, load: KVLoad | None) -> bool:
        """Whether a load is done. One that is too late ends here, with the pages loaded so far."""
        connector = None if load is None else self.owners.get(load)
        if load is None or connector is None:
            return True
        now = self._clock()
        if not load.is_done and now - max(load.started, self._last_done.get(id(connector), 0.0)) >= MAX_LOAD_S:
            if load.finish() and now >= self._quiet_until:
                self._quiet_until = now + MAX_LOAD_S  # a thousand may be late at once
                logger.warning("KV pages took too long to load; %d of them came.", len(load.pages))
        elif load.is_done and len(load.pages) > len(load.in_memory):
            self._last_done[id(connector)] = now
        return bool(self._call(connector, "is_loaded", load)) or load.is_done

    def end(self, load: KVLoad) -> None:
        """End a load whose pages are in blocks, or whose sequence no longer waits."""
        connector = self.owners.pop(load, None)
        if connector is not None:
            self._call(connector, "end_load", load)
            load.finish()

    def end_all(self) -> None:
        """End all loads and drop their pages; pages that are still being read are not used."""
        for load in list(self.owners):
            self.end(load)
            load.pages = {}

    def leave_out(self, connector: KVConnector) -> None:
        """End the loads of `copying`, or of a connector that has failed, without calling it."""
        for load in [load for load, owner in self.owners.items() if owner is connector]:
            del self.owners[load]
            load.finish()

    def _begin(self, owner: KVConnector, load: KVLoad) -> None:
        load.started = self._clock()
        self.owners[load] = owner
