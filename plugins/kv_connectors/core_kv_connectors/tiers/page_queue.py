"""Pages that wait to be stored, and the thread that stores them.

Owns: `PageQueue`: the limit on waiting pages, their order, the pause after a failure, the cost of storing. Never does: know
where pages go, read one, or make the caller wait. Called by: the writers of a disk and of a store, which inherit from it.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from core.api.kv_transfer import Page, PrefixKey
from core_kv_connectors.tiers.rest import Rest

MAX_PENDING_BYTES = 256 << 20
NEWEST_SHARE = 0.2
"""Weight of the newest page in the mean cost of writing."""


@dataclass(slots=True, eq=False)
class PendingPage:
    """A queued page. It is stored only if it is still listed when its turn comes.

    replaces: whether a page that is stored under this name is not to be kept.
    """

    group: int
    key: PrefixKey
    page: Page
    replaces: bool = False


class PageQueue(ABC):
    """Stores pages in order of submission, on a thread of its own.

    thread: its name. on_dropped: called with the key of each page that was not stored, on either thread.
    rest: the pause after a failure.
    byte_s: processor time in seconds that storing a byte took, a mean of the last pages; 0 until there is one.
    placed: names of pages that this process has stored or read, as far as it knows; others may have deleted them.
    num_dropped: pages that were not stored because the place was too slow or failed.
    """

    def __init__(self, thread: str, on_dropped: Callable[[PrefixKey], None]) -> None:
        self._on_dropped = on_dropped
        self.rest = Rest()
        self.byte_s = 0.0
        self.placed: set[str] = set()
        self.num_dropped = 0
        self._pending: OrderedDict[str, PendingPage] = OrderedDict()
        self._pending_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=thread, daemon=True)

    @abstractmethod
    def _try_to_store(self, name: str, pending: PendingPage) -> bool:
        """Store a page, unless it has left the queue; False when the place fails. Called by the thread."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether a page passed now would be written immediately."""
        return not (self._pending or self._closing or self.rest.remaining)

    @property
    def has_pending(self) -> bool:
        """Whether any page is not stored yet."""
        return bool(self._pending)

    def find(self, name: str) -> PendingPage | None:
        """Return a page that is not written yet, or None."""
        return self._pending.get(name)

    def put(self, name: str, pending: PendingPage) -> None:
        """Queue a page; it is dropped when the place is too slow."""
        nbytes = pending.page.nbytes
        with self._changed:
            if name in self._pending:
                return
            if self._closing or (self._pending and self._pending_bytes + nbytes > MAX_PENDING_BYTES):
                self.num_dropped += 1
                self._on_dropped(pending.key)
                return
            self._pending[name] = pending
            self._pending_bytes += nbytes
            self._changed.notify_all()

    def forget(self, name: str) -> None:
        """Remove a page from the queue, if it is there."""
        with self._changed:
            pending = self._pending.pop(name, None)
            if pending is not None:
                self._pending_bytes -= pending.page.nbytes
            self._changed.notify_all()

    def forget_all(self) -> None:
        """Remove all pages from the queue, and forget what was stored."""
        with self._changed:
            self._pending.clear()
            self._pending_bytes = 0
            self.placed.clear()
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all queued pages are stored; False when that takes too long or the place fails."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending or self.rest.remaining, timeout_s)
            return not self._pending

    def close(self, timeout_s: float) -> None:
        """Finish writing and end the thread; pages not written by then are lost."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (entry := self._next_pending()) is not None:
            name, pending = entry
            begin = time.thread_time()
            works = self._try_to_store(name, pending)
            byte_s = (time.thread_time() - begin) / max(pending.page.nbytes, 1)
            self.byte_s += (byte_s - self.byte_s) * (NEWEST_SHARE if self.byte_s else 1.0)
            with self._changed:
                if works:
                    self.rest.end()
                else:
                    self.rest.begin()
                if self._pending.get(name) is pending:
                    self.forget(name)

    def _next_pending(self) -> tuple[str, PendingPage] | None:
        """Return the next page as soon as the place may be tried; None at the end."""
        with self._changed:
            while True:
                rest = self.rest.remaining
                if self._pending and not rest:
                    return next(iter(self._pending.items()))
                if self._closing:
                    return None
                self._changed.wait(rest if self._pending else None)
