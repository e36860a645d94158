"""The thread that reads pages for waiting sequences.

Owns: `PageReader`: loads in order of submission, and their memory. Never does: write a page, or make the caller wait
for a read. Called by: `PageSource`.

A slow disk delays only the sequences that wait for it. When it does not answer at all, the KV manager ends each wait
after a timeout and has the sequence computed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from core.api.kv_load import KVLoad
from core.api.kv_transfer import Page, PrefixKey
from core_kv_connectors.tiers.slow_tier import ReadableTier

logger = logging.getLogger(__name__)

STUCK_S = 1.0
"""Seconds for one page after which the disk counts as stuck and gets no further requests until it answers."""
MAX_HELD_BYTES = 1 << 30
"""No load starts while this many bytes of pages wait for their sequences. A started load is read to its end; it is
never larger than the pool, into which all of it has to fit.
"""


class PageReader:
    """Fills loads from `tier`, one after another. clock: seconds."""

    def __init__(self, tier: ReadableTier, clock: Callable[[], float] = time.monotonic) -> None:
        self._tier = tier
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[KVLoad] = deque()
        self.loads: set[KVLoad] = set()
        self._unsure: set[KVLoad] = set()
        self.num_bytes = 0
        self._asked: float | None = None
        self._reading: KVLoad | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether the thread has been waiting for one answer for too long."""
        asked = self._asked
        return asked is not None and self._clock() - asked > STUCK_S

    def begin(self) -> None:
        """Start the thread, which makes the tier ready for the first load."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kv-reader", daemon=True)
            self._thread.start()

    def start(self, load: KVLoad, *, is_unsure: bool = False) -> None:
        """Queue a load; call `end` when its pages have been taken or are no longer needed.

        is_unsure: whether the disk has not yet said that it has any of them.
        """
        self.begin()
        with self._changed:
            self.loads.add(load)
            if is_unsure:
                self._unsure.add(load)
            self.num_bytes += load.num_bytes
            self._queue.append(load)
            self._changed.notify()

    def is_late(self, load: KVLoad) -> bool:
        """Whether a load has ended before it was read, although the disk has said that it has a page of it."""
        with self._changed:
            is_unread = load in self._queue or load is self._reading
            return load.is_done and is_unread and load not in self._unsure

    def end(self, load: KVLoad) -> None:
        """Release a load; its pages no longer count towards the memory limit."""
        with self._changed:
            self._forget_pages(load)
            self.loads.discard(load)
            self._unsure.discard(load)
            if load in self._queue:
                self._queue.remove(load)
            self._changed.notify()

    def end_all(self) -> None:
        """Mark all loads as done, without pages."""
        with self._changed:
            for load in self.loads:
                self._forget_pages(load)
            self.loads.clear()
            self._unsure.clear()
            self._queue.clear()
            self._changed.notify()

    def end_unsure(self) -> None:
        """Mark loads as done whose pages the disk may not have at all: their sequences need not wait for a stuck disk."""
        for load in list(self._unsure):
            load.finish()

    def forget(self, group: int, key: PrefixKey) -> None:
        """Drop a page with wrong values from all loads."""
        with self._changed:
            for load in self.loads:
                for index, known in enumerate(load.keys):
                    if known == key:
                        self._forget_page(load, group, index)

    def close(self, timeout_s: float) -> None:
        """End the thread; one that is waiting for a disk is abandoned."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self.end_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        self._prepare()
        while (load := self._next()) is not None:
            try:
                self._fill(load)
            except Exception as error:  # a defect costs only this load: its sequence is computed instead
                logger.error("KV pages could not be loaded.", exc_info=error)
            with self._changed:
                self._asked = None
                self._reading = None
            load.finish()

    def _prepare(self) -> None:
        self._asked = self._clock()
        try:
            for _ in self._tier.prepare():
                self._asked = None
                if self._queue or self._closing:
                    break
        except Exception as error:  # it would only have saved time
            logger.error("No memory was made ready for KV pages.", exc_info=error)
        self._asked = None

    def _next(self) -> KVLoad | None:
        """Return the next load as soon as there is memory for it; None at the end."""
        with self._changed:
            while not self._closing:
                if self._queue and self.num_bytes < MAX_HELD_BYTES:
                    self._reading = self._queue.popleft()
                    return self._reading
                self._changed.wait()
            return None

    def _fill(self, load: KVLoad) -> None:
        """Read the pages of the longest prefix; an unreadable page shortens it."""

        def contains(group: int, key: PrefixKey) -> bool:
            self._asked = self._clock()
            return self._tier.contains(group, key)

        def get(group: int, key: PrefixKey) -> Page | None:
            self._asked = self._clock()
            return self._tier.read(group, key)

        self._asked = self._clock()
        self._tier.expect(load)
        load.fill(contains, get, self._keep)

    def _keep(self, load: KVLoad, group: int, index: int, page: Page) -> None:
        with self._changed:
            if load.add(group, index, page):
                self.num_bytes += page.nbytes

    def _forget_page(self, load: KVLoad, group: int, index: int) -> None:
        load.absent.add((group, index))
        page = load.pages.pop((group, index), None)
        if page is not None:
            self.num_bytes -= page.nbytes

    def _forget_pages(self, load: KVLoad) -> None:
        load.finish()  # before its bytes are counted: no page is added from here on
        self.num_bytes -= load.num_bytes
        load.pages = {}
