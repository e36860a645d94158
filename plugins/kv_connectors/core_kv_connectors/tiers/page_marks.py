"""Pins on page files: their time of last use lies in the future, so that they are deleted last, until it has passed.

Owns: `PageMarks`: which files this process holds, until when, and the thread that says so to the file system. Never does: make
its caller wait for a disk, delete, or know where a pin comes from. Called by: the disk tier.

All processes that share a directory honour such a time, and it outlives them. Of pins in several processes the one that was
set last decides.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Set

from core_kv_connectors.tiers.holds import Holds
from core_kv_connectors.tiers.page_directory import PageDirectory

logger = logging.getLogger(__name__)

RENEWED_S = 60.0
"""A file is not marked again for less than this many seconds more."""


class PageMarks:
    """Marks of files in a directory. directory: returns it, as it may be replaced. clock: seconds of the wall clock."""

    def __init__(self, directory: Callable[[], PageDirectory], clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._clock = clock
        self._holds: Holds[str] = Holds()
        self._until: dict[str, float] = {}
        self._changed = threading.Condition()
        self._queue: dict[str, float] = {}
        self._closing = False
        self._thread: threading.Thread | None = None

    def hold(self, owner: Hashable, names: Set[str], most: int, seconds: float) -> bool:
        """Hold files for an owner, in place of those it had, for `seconds` from now on; False, and no change, where more than
        `most` would be held. Files that are not there yet are marked when they have been written.
        """
        changed = self._holds.put(owner, names, most)
        if changed is None:
            return False
        now = self._clock()
        until = now + seconds
        renewed = [name for name in names if self._until.get(name, 0.0) < until - min(RENEWED_S, seconds / 2)]
        _, dropped = changed
        with self._changed:
            for name in renewed:
                self._until[name] = self._queue[name] = until
            for name in dropped:
                self._until.pop(name, None)
                self._queue[name] = now
        self._start()
        return True

    def holds(self, name: str) -> bool:
        """Whether a file is held, written or not."""
        return name in self._holds

    def placed(self, name: str) -> None:
        """Mark a file that has been written, if it is held. May be called by another thread."""
        with self._changed:
            until = self._until.get(name)
            if until is not None:
                self._queue[name] = until
                self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Set the marks that are left and end the thread, within `timeout_s` seconds; one that hangs with the disk is left."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _start(self) -> None:
        with self._changed:
            if self._queue and self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="kv-marks", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while (mark := self._next()) is not None:
            try:
                self._directory().mark(*mark)
            except FileNotFoundError:
                continue  # it is marked when it is written
            except OSError as error:  # such as a file of another user: it is not held
                logger.debug("The KV page %s cannot be held: %s", mark[0], error)

    def _next(self) -> tuple[str, float] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            return self._queue.popitem() if self._queue else None
