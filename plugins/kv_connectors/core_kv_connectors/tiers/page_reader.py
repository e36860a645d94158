"""The thread that reads pages for sequences that wait.

Owns: `PageReader`: loads in the order in which they were started, and the memory that they hold. Never does: write a page, or
make the caller wait for a read. Called by: `PageSource`.

A disk that answers slowly delays the sequences that wait for it, and no others. When it does not answer at all, the KV manager
ends each wait after a while and has the sequence computed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from core.api.kv_load import KVLoad
from core.api.kv_transfer import Page, PrefixKey

logger = logging.getLogger(__name__)

STUCK_S = 1.0
"""A disk that takes longer for one page is asked for nothing else until it has answered."""
MAX_HELD_BYTES = 1 << 30
"""No load begins while pages of this size wait for their sequences. A load that has begun is read to its end; it is never
larger than the pool, where all of it has to fit."""


class ReadableTier(Protocol):
    """A tier that may take its time. Both methods are called by the reader's thread."""

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether a page may be there."""
        ...

    def read(self, group: int, key: PrefixKey) -> Page | None:
        """The page, verified, or None."""
        ...


class PageReader:
    """Fills loads from `tier`, one after the other. clock: seconds."""

    def __init__(self, tier: ReadableTier, clock: Callable[[], float] = time.monotonic) -> None:
        self._tier = tier
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[KVLoad] = deque()
        self._loads: set[KVLoad] = set()
        self._num_bytes = 0
        self._asked: float | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether the thread has waited for one answer for long."""
        asked = self._asked
        return asked is not None and self._clock() - asked > STUCK_S

    def start(self, load: KVLoad) -> None:
        """Have a load filled; `end` it when its pages have been taken or are not wanted any more."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kv-reader", daemon=True)
            self._thread.start()
        with self._changed:
            self._loads.add(load)
            self._num_bytes += load.num_bytes
            self._queue.append(load)
            self._changed.notify()

    def end(self, load: KVLoad) -> None:
        """Nobody waits for a load any more; its pages do not count as held."""
        with self._changed:
            self._forget_pages(load)
            self._loads.discard(load)
            if load in self._queue:
                self._queue.remove(load)
            self._changed.notify()

    def end_all(self) -> None:
        """All loads are done, and have no pages."""
        with self._changed:
            for load in self._loads:
                self._forget_pages(load)
            self._loads.clear()
            self._queue.clear()
            self._changed.notify()

    def forget(self, group: int, key: PrefixKey) -> None:
        """A page has wrong values: no load may have it."""
        with self._changed:
            for load in self._loads:
                for index, known in enumerate(load.keys):
                    if known == key:
                        self._forget_page(load, group, index)

    def close(self, timeout_s: float) -> None:
        """End the thread; one that waits for a disk is left to its fate."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self.end_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (load := self._next()) is not None:
            try:
                self._fill(load)
            except Exception as error:  # a defect costs this load, not the thread: its sequence is computed instead
                logger.error("KV pages could not be loaded.", exc_info=error)
            with self._changed:
                self._asked = None
            load.finish()

    def _next(self) -> KVLoad | None:
        """The next load as soon as there is memory for it; None at the end."""
        with self._changed:
            while not self._closing:
                if self._queue and self._num_bytes < MAX_HELD_BYTES:
                    return self._queue.popleft()
                self._changed.wait()
            return None

    def _fill(self, load: KVLoad) -> None:
        """Read what the longest prefix needs; a page that cannot be read makes it shorter."""

        def contains(group: int, key: PrefixKey) -> bool:
            self._asked = self._clock()
            return self._tier.contains(group, key)

        def get(group: int, key: PrefixKey) -> Page | None:
            self._asked = self._clock()
            return self._tier.read(group, key)

        load.fill(contains, get, self._keep)

    def _keep(self, load: KVLoad, group: int, index: int, page: Page) -> None:
        with self._changed:
            if load.add(group, index, page):
                self._num_bytes += page.nbytes

    def _forget_page(self, load: KVLoad, group: int, index: int) -> None:
        load.absent.add((group, index))
        page = load.pages.pop((group, index), None)
        if page is not None:
            self._num_bytes -= page.nbytes

    def _forget_pages(self, load: KVLoad) -> None:
        load.finish()  # before its bytes are counted: no page is added from here on
        self._num_bytes -= load.num_bytes
        load.pages = {}
