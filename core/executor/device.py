"""An opened device, as the models on it share it.

Owns: what was allocated on it, by tag, and the arenas that prepared weights lie in. Never does: compute, free.
Called by: the worker (it opens one), the models' instances and the KV memory (they allocate).
"""

from __future__ import annotations

import inspect
from collections import Counter

from torch import Tensor

from core.plugin.contracts import MemoryTag, Runtime

ALIGNMENT = 4096
CHUNK = 64 << 20
"""Bytes of an arena that are reserved at once; on a CPU, pages cost memory when they are touched."""


class Device:
    """A runtime and its memory.

    nbytes: bytes in use, by tag.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.nbytes: Counter[MemoryTag] = Counter()
        self._tagged = "tag" in inspect.signature(runtime.allocate).parameters

    def allocate(self, nbytes: int, tag: MemoryTag) -> Tensor:
        """Zeroed uint8 [nbytes]. A runtime of contract 1 is not told the tag."""
        self.nbytes[tag] += nbytes
        return self._reserve(nbytes, tag)

    def weights_arena(self) -> Arena:
        """Memory for the weights of one model."""
        return Arena(self)

    def _reserve(self, nbytes: int, tag: MemoryTag) -> Tensor:
        if self._tagged:
            return self.runtime.allocate(nbytes, tag=tag)
        return self.runtime.allocate(nbytes)


class Arena:
    """Memory for many weights, reserved in chunks; a chunk lives as long as a weight in it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._chunk: Tensor | None = None
        self._used = 0

    def take(self, nbytes: int) -> Tensor:
        """uint8 [nbytes] that nobody else has, at a multiple of `ALIGNMENT` from the beginning of a chunk."""
        if self._chunk is None or self._used + nbytes > len(self._chunk):
            self._chunk = self._device._reserve(max(nbytes, CHUNK), "weights")
            self._used = 0
        start = self._used
        self._used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self._device.nbytes["weights"] += nbytes
        return self._chunk[start : start + nbytes]
