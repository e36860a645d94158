"""The pages that one sequence waits for.

Owns: `KVLoad`. Never does: read anything (the page reader does). Called by: the prefix search (makes it and takes its pages)
and the page reader (fills it).
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.kv_transfer import Page
from core.kv.hashing import PrefixKey
from core.kv.prefix_needs import PrefixNeeds

Entry = tuple[int, int]
"""Group and index of a block in a sequence's tables."""


class KVLoad:
    """A search in a slow tier, and the pages that have come of it.

    needs:   which blocks a prefix needs.
    keys:    of the sequence's full blocks, in order.
    in_pool: one byte an index for each group: 1 where the block was cached when the wait began.
    started: when the wait began, by the reader's clock.
    pages:   verified pages that have come, and those in memory when the wait began; not added to after `is_done`.
    in_memory: those of them that were in memory when the wait began.
    absent:  entries whose page is missing or unusable.
    is_done: nothing more will come: all is there, or the load failed, was given up or is not wanted any more.
    """

    __slots__ = ("absent", "in_memory", "in_pool", "is_done", "keys", "needs", "pages", "started")

    def __init__(self, needs: PrefixNeeds, keys: Sequence[PrefixKey]) -> None:
        self.needs = needs
        self.keys = keys
        self.in_pool: list[bytearray] = []
        self.started = 0.0
        self.pages: dict[Entry, Page] = {}
        self.in_memory: set[Entry] = set()
        self.absent: set[Entry] = set()
        self.is_done = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the pages."""
        return sum(page.nbytes for page in self.pages.values())

    def was_read(self, group: int, index: int) -> bool:
        """Whether a block's page has come from the slow tier."""
        entry = (group, index)
        return entry in self.pages and entry not in self.in_memory

    def has(self, group: int, index: int) -> bool:
        """Whether a block needs no reading."""
        return bool(self.in_pool[group][index]) or (group, index) in self.pages
