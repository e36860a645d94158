"""Memory for pages that are read.

Owns: `PageMemory`, and `ReusedMemory`, which lends the same memory again. Never does: read. Called by: the disk tier, the tier
of other engines, handoffs.

On a virtual machine the first write to new memory may take 25 µs for each 4 KiB: 0.8 s for the 128 MB of an agent's history,
which is read in 70 ms into memory that was written before.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from core.api.kv_transfer import Page

MAX_AHEAD_BYTES = 256 << 20
MAX_KEPT_BYTES: Final = 128 << 20
"""Limit of memory that is kept for the next pages: some thousand tokens of a small model."""
TRIES: Final = 8


NewPage = Callable[[], Page]
"""Returns memory for a page, with any content; may be called from any thread."""


class PageMemory:
    """Memory for pages of `page_bytes` bytes, some of it written ahead. Belongs to the thread that reads.

    new_page: where pages lie; None: in memory of this process alone.
    """

    def __init__(self, page_bytes: int, new_page: NewPage | None = None) -> None:
        self._page_bytes = page_bytes
        self._new_page = new_page
        self._ahead: list[Page] = []

    @property
    def max_ahead(self) -> int:
        """Return the number of pages whose memory may be written ahead."""
        return MAX_AHEAD_BYTES // self._page_bytes

    def write_ahead(self) -> None:
        """Write the memory of one more page."""
        page = self._new()
        page[:] = 255
        self._ahead.append(page)

    def take(self) -> Page:
        """Return the memory of a page, if possible some that was written ahead."""
        return self._ahead.pop() if self._ahead else self._new()

    def _new(self) -> Page:
        return np.empty(self._page_bytes, np.uint8) if self._new_page is None else self._new_page()


class ReusedMemory:
    """Memory for pages, some of which is lent again once nobody has it. Any thread may call it.

    new_page: returns memory for a page of `page_bytes` bytes. capacity: limit in bytes on what is kept, as `MAX_KEPT_BYTES` is.

    A page is free when nothing refers to it, views of it included: NumPy has them refer to the array that owns the memory.
    """

    def __init__(self, new_page: NewPage, page_bytes: int, capacity: int) -> None:
        self._new_page = new_page
        self._most = min(capacity, MAX_KEPT_BYTES) // page_bytes
        self._kept: deque[Page] = deque([np.empty(0, np.uint8)])
        self._lock = threading.Lock()
        # The number of references to an array that the queue alone has differs between versions of Python.
        self._num_ours = self._first()[1]
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self) -> Page:
        """Return the memory of a page, with any content."""
        with self._lock:
            for _ in range(min(len(self._kept), TRIES)):
                page, num_references = self._first()
                self._kept.rotate(-1)
                if num_references <= self._num_ours:
                    return page
        page = self._new_page()
        if page.base is None:  # else what it is a view of counts references to all pages
            with self._lock:
                if len(self._kept) < self._most:
                    self._kept.append(page)
        return page

    def drop(self) -> None:
        """Keep nothing any more."""
        with self._lock:
            self._kept.clear()

    def _first(self) -> tuple[Page, int]:
        """Return the page that was lent longest ago, and the number of references to it."""
        page = self._kept[0]
        return page, sys.getrefcount(page)
