"""Staged copies between the host and a device with memory of its own: few copies a step each way, through rings.

Owns: the rings, and which bytes have changed since the last send. Never does: know what the bytes mean.
Called by: the step's buffers (to the device), the steps ahead (back).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core_runtime.contracts import Downloads, Uploads

RING: Final = 3
"""Maximum steps whose copies are in flight; one more waits for the oldest."""

GAP: Final = 32 << 10
"""Unchanged bytes that are sent along, because another copy would take longer to be launched."""


class Staging:
    """Copies changed bytes of `host` to `device`, both uint8 [nbytes].

    host: steps may write to it at any time, because a copy in flight reads the ring.
    device: the same layout on the device.
    uploads: a runtime with asynchronous copies; None: a copy is complete when the call returns.
    """

    def __init__(self, host: Tensor, device: Tensor, uploads: Uploads | None) -> None:
        self._host = host
        self._device = device
        self._uploads = uploads
        num_copies = 0 if uploads is None else RING
        self._ring: list[Tensor] = []
        for _ in range(num_copies):
            if isinstance(uploads, Downloads):
                copy = uploads.host_memory(len(host))
            else:
                copy = torch.zeros(host.shape, dtype=torch.uint8)
            self._ring.append(copy)
        self._waits: list[Callable[[], None] | None] = [None] * RING
        self._next = 0
        self._changed: list[tuple[int, int]] = []

    def changed(self, begin: int, end: int) -> None:
        """Mark bytes [begin, end) of the host as changed."""
        if begin < end:
            self._changed.append((begin, end))

    def send(self) -> None:
        """Copy all changed bytes, and those of small gaps between them; kernels launched from now on see them."""
        if not self._changed:
            return
        ranges = _joined(self._changed)
        self._changed.clear()
        if self._uploads is None:
            for begin, end in ranges:
                self._device[begin:end].copy_(self._host[begin:end])
            return
        turn = self._next
        self._next = (turn + 1) % RING
        wait = self._waits[turn]
        # The copies of the ring's oldest step may still be read by the device.
        if wait is not None:
            wait()
        ring = self._ring[turn]
        for begin, end in ranges:
            source = ring[begin:end]
            source.copy_(self._host[begin:end])
            # Copies are made in their order, so the last one is waited for.
            self._waits[turn] = self._uploads.upload(self._device[begin:end], source)


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in order, with those joined that overlap or have a gap of at most `GAP` between them."""
    ranges.sort()
    first, last = ranges[0]
    joined: list[tuple[int, int]] = []
    for begin, end in ranges:
        if begin > last + GAP:
            joined.append((first, last))
            first = begin
        last = max(last, end)
    joined.append((first, last))
    return joined


@dataclass(frozen=True, slots=True)
class Returned:
    """Words of a step on their way to the host.

    words: int64 [n] on the host; valid after `wait`, and until RING further copies have begun.
    """

    words: NDArray[np.int64]
    wait: Callable[[], None]


class Returns:
    """Copies a step's output, at most `num_words` 64-bit words, from the device."""

    def __init__(self, num_words: int, downloads: Downloads) -> None:
        self._downloads = downloads
        self._ring = [downloads.host_memory(num_words * 8).view(torch.int64) for _ in range(RING)]
        self._next = 0

    def begin(self, words: Tensor) -> Returned:
        """Start to copy int64 [R], after all kernels that were launched so far."""
        target = self._ring[self._next][: len(words)]
        self._next = (self._next + 1) % RING
        wait = self._downloads.download(target.view(torch.uint8), words.view(torch.uint8))
        return Returned(target.numpy(), wait)
