"""Memory for pages that are read.

Owns: `PageMemory`. Never does: read. Called by: the disk tier, the tier of other engines.

On a virtual machine the first write to new memory may take 25 µs for each 4 KiB: 0.8 s for the 128 MB of an agent's history,
which is read in 70 ms into memory that was written before.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from core.api.kv_transfer import Page

MAX_AHEAD_BYTES = 256 << 20


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
