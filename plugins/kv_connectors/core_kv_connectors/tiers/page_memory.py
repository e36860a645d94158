"""Memory for pages that are read.

Owns: `PageMemory`. Never does: read. Called by: the disk tier.

On a virtual machine the first write to new memory may take 25 µs for each 4 KiB: 0.8 s for the 128 MB of an agent's history,
which is read in 70 ms into memory that was written before.
"""

from __future__ import annotations

import numpy as np

from core.api.kv_transfer import Page

MAX_AHEAD_BYTES = 256 << 20


class PageMemory:
    """Memory for pages of `page_bytes` bytes, some of it written ahead. Belongs to the thread that reads."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._ahead: list[Page] = []

    @property
    def max_ahead(self) -> int:
        """Return the number of pages whose memory may be written ahead."""
        return MAX_AHEAD_BYTES // self._page_bytes

    def write_ahead(self) -> None:
        """Write the memory of one more page."""
        self._ahead.append(np.full(self._page_bytes, 255, np.uint8))

    def take(self) -> Page:
        """Return the memory of a page, if possible some that was written ahead."""
        return self._ahead.pop() if self._ahead else np.empty(self._page_bytes, np.uint8)
