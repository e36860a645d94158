"""The KV pages that one sequence waits for.

Owns: `KVLoad`: the blocks that a prefix needs, and the pages received so far. Never does: read anything (a connector does).
Called by: the prefix search (creates a load and takes its pages) and KV connectors (fill it, on a thread of their own).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from core.api.kv_transfer import Page, PrefixKey

Entry = tuple[int, int]
"""(KV group, index of a block in a sequence's block table of that group)."""

Has = Callable[[int, int], bool]
"""Whether a KV group has the block at an index."""


class BlockNeeds(Protocol):
    """The blocks that prefixes of a sequence need, independent of the groups of layers."""

    def longest(self, most: int, has: Has) -> int:
        """Return the length, in blocks and at most `most`, of the longest prefix that the blocks confirmed by `has` serve."""
        ...

    def entries(self, num_blocks: int) -> Iterator[Entry]:
        """Yield (group, index) of every block that a prefix of `num_blocks` blocks needs, in the order to load them."""
        ...


class KVLoad:
    """One sequence's search of slow storage, and the pages found there.

    The KV manager's thread and a connector's thread share it: a lock orders `add` and `finish`.

    needs:     blocks that a prefix needs. tell: called once it is done.
    keys:      keys of the sequence's full blocks, in order.
    in_pool:   one byte per index for each group: 1 where the block was cached when the wait began.
    started:   when the wait began, by the clock of the KV manager.
    pages:     verified pages by (group, index), including those in memory when the wait began; final once `is_done`.
    in_memory: entries of `pages` that were in memory when the wait began.
    absent:    entries whose page is missing or unusable.
    failure:   sentence with which its sequence ends instead of being computed; empty: none.
    is_done:   whether no more pages will be added: all have arrived, or the load failed, timed out or is no longer wanted.
    """

    __slots__ = ("_lock", "_tell", "absent", "failure", "in_memory", "in_pool", "is_done", "keys", "needs", "pages",
                 "started")  # fmt: skip

    def __init__(
        self, needs: BlockNeeds, keys: Sequence[PrefixKey], tell: Callable[[KVLoad], None] | None = None
    ) -> None:
        self.needs = needs
        self.keys = keys
        self.in_pool: list[bytearray] = []
        self.started = 0.0
        self.pages: dict[Entry, Page] = {}
        self.in_memory: set[Entry] = set()
        self.absent: set[Entry] = set()
        self.failure = ""
        self.is_done = False
        self._tell = tell
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Total size of the pages received so far, in bytes."""
        return sum(page.nbytes for page in self.pages.values())

    def was_read(self, group: int, index: int) -> bool:
        """Whether the page of a block was read from slow storage during this wait."""
        entry = (group, index)
        return entry in self.pages and entry not in self.in_memory

    def has(self, group: int, index: int) -> bool:
        """Whether a block needs no read: it was cached on the device, or its page is here."""
        return bool(self.in_pool[group][index]) or (group, index) in self.pages

    def add(self, group: int, index: int, page: Page) -> bool:
        """Store a verified page; return False, without a change, when the load is done or the page is marked unusable."""
        with self._lock:
            if self.is_done or (group, index) in self.absent:
                return False
            self.pages[group, index] = page
            return True

    def finish(self) -> bool:
        """Wake the sequence, which continues with the pages that arrived. Returns False when the load was already done.

        Every load that was started must end here, even when reading fails.
        """
        # The race with `add` on the connector's thread: a page is in `pages` before the sequence looks, or `add` refuses it.
        with self._lock:
            if self.is_done:
                return False
            self.is_done = True
        if self._tell is not None:
            self._tell(self)
        return True

    def fill(
        self,
        contains: Callable[[int, PrefixKey], bool],
        get: Callable[[int, PrefixKey], Page | None],
        keep: Callable[[KVLoad, int, int, Page], None] | None = None,
    ) -> None:
        """Read the pages that the longest prefix needs; a page that cannot be read makes the prefix shorter.

        Call it on a thread of the connector. It does not call `finish`.

        contains: returns whether a page seems to exist. get: returns the verified page, or None. keep: called with (load,
        group, index, page) instead of `add`, and must itself call `add`.
        """

        def has(group: int, index: int) -> bool:
            if self.has(group, index):
                return True
            return (group, index) not in self.absent and contains(group, self.keys[index])

        complete = False
        while not (complete or self.is_done):
            num_blocks = self.needs.longest(len(self.keys), has)
            complete = self._read_all(num_blocks, get, keep or KVLoad.add)

    def _read_all(
        self,
        num_blocks: int,
        get: Callable[[int, PrefixKey], Page | None],
        keep: Callable[[KVLoad, int, int, Page], object],
    ) -> bool:
        """Read the pages of a prefix; return False as soon as one is missing or the load is done."""
        for group, index in self.needs.entries(num_blocks):
            if self.has(group, index):
                continue
            if self.is_done:
                return False
            page = get(group, self.keys[index])
            if page is None:
                self.absent.add((group, index))
                return False
            keep(self, group, index, page)
        return True
