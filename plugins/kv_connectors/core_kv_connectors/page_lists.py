"""The pages of slow places, listed again and again, for KV events.

Owns: `PageLists`: a thread that lists pages and compares them with those of the last time. Never does: send an event, read a
page, or make the thread that plans steps wait for a place. Called by: the KV connector `events`.

A list says what writing alone does not: pages of an earlier engine, of other engines that share a directory, and deletions by
any of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

PAUSE_S: Final = 2.0
"""Seconds between two lists."""
SHARE: Final = 20
"""A list that takes long is followed by a pause of this many times its duration."""
MOST_PAGES: Final = 1 << 19
"""Limit of pages of a medium that are known, each about 150 bytes; the rest has no events, with a warning."""
MOST_TAKEN: Final = 1024
"""Limit of pages that one call of `take` returns, for which a step waits about a millisecond."""

PageName = tuple[int, bytes]
"""Group of layers and digest of a block."""
Source = Callable[[], Iterable[PageName]]
"""Function that lists the pages of a place now; it may take long, and raise OSError."""


class Changes(NamedTuple):
    """Pages that a medium has, or no longer has, since the last list."""

    medium: str
    stored: list[PageName]
    removed: list[PageName]


class PageLists:
    """Lists of all places. Its thread starts with the first of them. pause_s: seconds between two lists."""

    def __init__(self, pause_s: float = PAUSE_S) -> None:
        self._pause_s = pause_s
        self._sources: dict[str, list[Source]] = {}
        self._known: dict[str, set[PageName]] = {}
        self._changes: deque[Changes] = deque()
        self._round = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_warned = False

    @property
    def is_used(self) -> bool:
        """Whether there is any place."""
        return self._thread is not None

    @property
    def has_changes(self) -> bool:
        """Whether `take` would return anything."""
        return bool(self._changes)

    def watch(self, medium: str, source: Source) -> None:
        """List a place from now on. Places of one medium count as one."""
        with self._lock:
            self._sources.setdefault(medium, []).append(source)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kv-lists", daemon=True)
            self._thread.start()

    def take(self) -> list[Changes]:
        """Return the next changes, in order."""
        taken: list[Changes] = []
        with self._lock:
            room = MOST_TAKEN
            while self._changes and room > 0:
                taken.append(self._changes.popleft())
                room -= len(taken[-1].stored) + len(taken[-1].removed)
        return taken

    def forget(self) -> None:
        """Report everything again that is still there at the next list: events have said that nothing is."""
        with self._lock:
            self._known.clear()
            self._changes.clear()
            self._round += 1

    def close(self) -> None:
        """End the thread; one that waits for a place is abandoned."""
        self._closing.set()

    def _run(self) -> None:
        pause = 0.0
        while not self._closing.wait(pause):
            begin = time.monotonic()
            for medium in list(self._sources):
                self._list(medium)
            pause = max(self._pause_s, SHARE * (time.monotonic() - begin))

    def _list(self, medium: str) -> None:
        number = self._round
        found: set[PageName] = set()
        try:
            for source in list(self._sources[medium]):
                found.update(islice(source(), MOST_PAGES))
        except OSError as error:  # what it has is not known, so nothing changes
            self._warn(f"The pages of {medium} cannot be listed for KV events: {error}.")
            return
        if len(found) >= MOST_PAGES:
            self._warn(f"{medium} has more than {MOST_PAGES} pages; not all of them have KV events.")
            found = set(islice(found, MOST_PAGES))
        with self._lock:
            if number != self._round:  # begun before everything was forgotten
                return
            known = self._known.get(medium, set())
            self._known[medium] = found
            stored, removed = iter(found - known), iter(known - found)
            while chunk := list(islice(removed, MOST_TAKEN)):
                self._changes.append(Changes(medium, [], chunk))
            while chunk := list(islice(stored, MOST_TAKEN)):
                self._changes.append(Changes(medium, chunk, []))

    def _warn(self, sentence: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s", sentence)
