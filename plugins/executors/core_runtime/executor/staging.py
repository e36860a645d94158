"""The ways between the host and a device with memory of its own: one copy a step each, by rings of host copies.

Owns: the rings, and which bytes have changed since the last copy. Never does: know what the bytes mean.
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
"""Copies under way at once; one more waits for the oldest."""


class Staging:
    """Brings what changes in `host` to `device`, both uint8 [nbytes].

    host: written by steps at any time, because a copy under way reads the ring.
    device: the same layout on the device.
    uploads: the runtime's own way; None: a copy that is done when the call returns.
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
        self._begin = host.shape[0]
        self._end = 0

    def changed(self, begin: int, end: int) -> None:
        """Bytes [begin, end) of the host are newer than the device's."""
        self._begin = min(self._begin, begin)
        self._end = max(self._end, end)

    def send(self) -> None:
        """One copy of everything from the first changed byte to the last; kernels called from now on see it."""
        begin = self._begin
        end = self._end
        if begin >= end:
            return
        self._begin = self._host.shape[0]
        self._end = 0
        changed = self._host[begin:end]
        target = self._device[begin:end]
        if self._uploads is None:
            target.copy_(changed)
            return
        turn = self._next
        self._next = (turn + 1) % RING
        wait = self._waits[turn]
        if wait is not None:
            wait()
        source = self._ring[turn][begin:end]
        source.copy_(changed)
        self._waits[turn] = self._uploads.upload(target, source)


@dataclass(frozen=True, slots=True)
class Returned:
    """What a step gives, on its way back.

    words: int64 [n] on the host, which mean nothing before `wait` was called, and are another step's after RING more.
    """

    words: NDArray[np.int64]
    wait: Callable[[], None]


class Returns:
    """Brings what a step gives, at most `num_words` of 64 bits, from the device."""

    def __init__(self, num_words: int, downloads: Downloads) -> None:
        self._downloads = downloads
        self._ring = [downloads.host_memory(num_words * 8).view(torch.int64) for _ in range(RING)]
        self._next = 0

    def begin(self, words: Tensor) -> Returned:
        """Begin to copy int64 [R], as they are behind all kernels that were called so far."""
        target = self._ring[self._next][: len(words)]
        self._next = (self._next + 1) % RING
        wait = self._downloads.download(target.view(torch.uint8), words.view(torch.uint8))
        return Returned(target.numpy(), wait)
