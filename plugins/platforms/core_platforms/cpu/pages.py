"""Copies of KV blocks between the cache and pages in host memory, many in one native call.

Owns: `PieceCopies`: the addresses that the call reads, and the checks that keep it inside the buffers. Never does: choose
blocks, or keep a page. Called by: the KV memory, through the runtime.

A block has a part in the buffer of every layer, of 12 to 64 KB in small models: one by one, the calls would take as long as
the copying.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from core.api.kv_transfer import Page


class PieceCopies:
    """Copies of blocks in `buffers`, contiguous uint8 [num_blocks, block bytes] each, which must outlive it."""

    def __init__(self, native: ModuleType, buffers: Sequence[Tensor]) -> None:
        self._native = native
        self._num_blocks = min(len(buffer) for buffer in buffers)
        self._starts = np.array([buffer.data_ptr() for buffer in buffers], np.int64)
        self._sizes = np.array([buffer.shape[1] for buffer in buffers], np.int64)
        self._page_bytes = int(self._sizes.sum())

    def save(self, block_ids: Sequence[int], into: Sequence[Page]) -> None:
        """Copy blocks to pages, contiguous and as many. Raises ValueError for a page of another size."""
        self._copy(block_ids, into, save=True)

    def load(self, loads: Sequence[tuple[int, Page]]) -> None:
        """Write pages to blocks. Raises ValueError for a page of another size."""
        pages = [np.ascontiguousarray(page) for _, page in loads]
        self._copy([block_id for block_id, _ in loads], pages, save=False)

    def _copy(self, block_ids: Sequence[int], pages: Sequence[Page], *, save: bool) -> None:
        if not block_ids:
            return
        if len(pages) != len(block_ids) or any(page.nbytes != self._page_bytes for page in pages):
            raise ValueError(f"a page of another size than {self._page_bytes} bytes")
        blocks = np.array(block_ids, np.int64)
        if blocks.min() < 0 or blocks.max() >= self._num_blocks:
            raise IndexError(f"a block outside 0 to {self._num_blocks - 1}")
        addresses = np.array([page.ctypes.data for page in pages], np.int64)
        self._native.copy_pages(
            _address(self._starts), _address(self._sizes), len(self._sizes),
            _address(blocks), _address(addresses), len(pages), save,
        )  # fmt: skip


def _address(numbers: NDArray[np.int64]) -> int:
    address: int = numbers.ctypes.data
    return address
