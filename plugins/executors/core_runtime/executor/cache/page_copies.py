"""Copies of KV blocks between a device and the host, many at a time and beside the computation.

Owns: the pinned and device memory that blocks pass through, and the events that say when it may be used again. Never
does: choose blocks, keep a page. Called by: the KV memory, on a device with a stream for copies.

A block has a part in the buffer of every layer. One kernel a buffer gathers the parts of many blocks into memory of the
device, in the order of the steps, so later steps may overwrite the blocks. One copy in another stream brings them to
pinned memory while the step computes. Loads go the same way back: kernels wait for them, the host does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from core.api.kv_transfer import Page
from core_runtime.contracts import CopiesAside, Event

SLOT_BYTES: Final = 32 << 20
"""Size of a slot: what 256 sequences of an 8B model (2 MiB a block of 16 tokens) evict in a step."""
NUM_SLOTS: Final = 2

T = TypeVar("T")


@dataclass(slots=True)
class Slot:
    """Memory that up to `capacity` blocks pass through.

    host_pages, pages: [capacity, page size], pinned and on the device.
    host_ids, ids: int64 [capacity], their block ids, pinned and on the device.
    ids_sent: waits until `host_ids` may be written.
    copied: event after the last copy of pages.
    used: event after the last kernel that used `pages`.
    unread: pages that the last copy brings to `host_pages`.
    """

    host_pages: Tensor
    pages: Tensor
    host_ids: Tensor
    ids: Tensor
    ids_sent: Callable[[], None] | None = None
    copied: Event | None = None
    used: Event | None = None
    unread: list[Page] = field(default_factory=list)

    def empty(self) -> None:
        """Wait for the last copies and fill the unread pages, so that the host may write."""
        if self.ids_sent is not None:
            self.ids_sent()
        if self.copied is not None:
            self.copied.synchronize()
        for page, row in zip(self.unread, self.host_pages.view(torch.uint8).numpy(), strict=False):
            page[:] = row
        self.unread = []


class SavedPages:
    """Pages on their way to the host. pages: valid after `wait`. parts: slots, and what was unread in them."""

    def __init__(self, pages: list[Page], parts: Sequence[tuple[Slot, list[Page]]] = ()) -> None:
        self._pages = pages
        self._parts = parts

    def wait(self) -> list[Page]:
        """Wait for the copies and return the pages."""
        for slot, unread in self._parts:
            if slot.unread is unread:  # otherwise the slot has been used again, for which it was emptied
                slot.empty()
        return self._pages


class PageCopies:
    """Copies of the blocks in some buffers, uint8 [num_blocks, block bytes] each. The KV memory owns it."""

    def __init__(self, buffers: Sequence[Tensor], copies: CopiesAside) -> None:
        # copying 8-byte numbers is several times as fast as copying single bytes
        wide = all(buffer.shape[1] % 8 == 0 for buffer in buffers)
        self._buffers = [buffer.view(torch.int64) if wide else buffer for buffer in buffers]
        self._ends: list[int] = np.cumsum([buffer.shape[1] for buffer in self._buffers]).tolist()
        self._page_bytes = sum(buffer.shape[1] for buffer in buffers)
        self._capacity = max(SLOT_BYTES // self._page_bytes, 1)
        self._copies = copies
        self._slots = [self._slot() for _ in range(NUM_SLOTS)]
        self._num_used = 0

    def save(self, block_ids: Sequence[int], into: list[Page]) -> SavedPages:
        """Begin to copy blocks to the host; kernels called later may overwrite them. into: memory for the page of each."""
        parts: list[tuple[Slot, list[Page]]] = []
        begin = 0
        for part in self._parts(block_ids):
            slot = self._next_slot(part)
            pages = into[begin : begin + len(part)]
            begin += len(part)
            for buffer, place in self._places(slot, len(part)):
                torch.index_select(buffer, 0, slot.ids[: len(part)], out=place)
            slot.used = self._copies.event()
            slot.copied = self._copies.copy_aside(slot.host_pages[: len(part)], slot.pages[: len(part)], slot.used)
            slot.unread = pages
            parts.append((slot, pages))
        return SavedPages(into, parts)

    def load(self, loads: Sequence[tuple[int, Page]]) -> None:
        """Copy pages into blocks; kernels called later see them."""
        for part in self._parts(loads):
            slot = self._next_slot([block_id for block_id, _ in part])
            rows = slot.host_pages.view(torch.uint8).numpy()
            for row, (_, page) in zip(rows, part, strict=False):
                row[:] = page
            # the slot's own last kernel may still read its memory, but the steps in flight need not be waited for
            slot.copied = self._copies.copy_aside(slot.pages[: len(part)], slot.host_pages[: len(part)], slot.used)
            self._copies.wait_aside(slot.copied)
            for buffer, place in self._places(slot, len(part)):
                buffer.index_copy_(0, slot.ids[: len(part)], place)
            slot.used = self._copies.event()

    def _parts(self, rows: Sequence[T]) -> Iterator[Sequence[T]]:
        """Yield as many as fit into a slot at a time."""
        for begin in range(0, len(rows), self._capacity):
            yield rows[begin : begin + self._capacity]

    def _next_slot(self, block_ids: Sequence[int]) -> Slot:
        """Return the slot that was used least recently, emptied, with these ids on the device."""
        slot = self._slots[self._num_used % NUM_SLOTS]
        self._num_used += 1
        slot.empty()
        count = len(block_ids)
        slot.host_ids.numpy()[:count] = block_ids
        slot.ids_sent = self._copies.upload(slot.ids[:count].view(torch.uint8), slot.host_ids[:count].view(torch.uint8))
        return slot

    def _places(self, slot: Slot, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each buffer with its part of the slot's first `count` pages."""
        begin = 0
        for buffer, end in zip(self._buffers, self._ends, strict=True):
            yield buffer, slot.pages[:count, begin:end]
            begin = end

    def _slot(self) -> Slot:
        dtype, device = self._buffers[0].dtype, self._buffers[0].device
        shape = self._capacity, self._ends[-1]
        host_pages = self._copies.host_memory(self._capacity * self._page_bytes).view(dtype).view(shape)
        host_ids = self._copies.host_memory(self._capacity * 8).view(torch.int64)
        pages = torch.zeros(shape, dtype=dtype, device=device)
        return Slot(host_pages, pages, host_ids, torch.zeros(self._capacity, dtype=torch.int64, device=device))
