"""An opened device, as the models on it share it.

Owns: what was allocated on it, by tag. Never does: compute, free.
Called by: the worker (it opens one), the models' instances and the KV memory (they allocate).
"""

from __future__ import annotations

import inspect
from collections import Counter

from torch import Tensor

from core_runtime.contracts import MemoryTag, Runtime
from core_runtime.executor.arena import Arena


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
        """Memory for the weights of one model, and of those that follow it."""

        def count(nbytes: int) -> None:
            self.nbytes["weights"] += nbytes

        return Arena(lambda nbytes: self._reserve(nbytes, "weights"), count)

    def _reserve(self, nbytes: int, tag: MemoryTag) -> Tensor:
        if self._tagged:
            return self.runtime.allocate(nbytes, tag=tag)
        return self.runtime.allocate(nbytes)
