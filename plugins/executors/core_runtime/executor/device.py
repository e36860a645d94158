"""An opened device and its allocations, shared by all models on it.

Owns: the number of allocated bytes, by tag. Never does: compute.
Called by: the worker (it opens one), the model instances and the KV memory (they allocate).
"""

from __future__ import annotations

import inspect
from collections import Counter

from torch import Tensor

from core.api.errors import UserError
from core_runtime.contracts import AllocatesInFiles, MemoryTag, Runtime, Trims
from core_runtime.executor.reloading.arena import CHUNK, DEVICE_CHUNK, Arena


class Device:
    """An opened runtime and its memory use. The worker owns it.

    nbytes: bytes in use, by tag.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.nbytes: Counter[MemoryTag] = Counter()
        # Platforms of contract 1 have `allocate(nbytes)` without a tag, and must keep working.
        self._tagged = "tag" in inspect.signature(runtime.allocate).parameters

    def allocate(self, nbytes: int, tag: MemoryTag) -> Tensor:
        """Allocate zeroed uint8 [nbytes]. A runtime of contract 1 does not receive the tag."""
        self.nbytes[tag] += nbytes
        return self._reserve(nbytes, tag)

    def allocate_in(self, descriptor: int, offset: int, nbytes: int, tag: MemoryTag) -> Tensor:
        """Return uint8 [nbytes] in a file. Raises UserError where the platform cannot compute there."""
        self.nbytes[tag] += nbytes
        return self.in_files().allocate_in(descriptor, offset, nbytes)

    def in_files(self) -> AllocatesInFiles:
        """Return the runtime, which computes in memory that is a file. Raises UserError if it cannot."""
        if not isinstance(self.runtime, AllocatesInFiles):
            raise UserError(f"--keep-kv: the memory of {self.runtime.device} ends with the engine; leave it out.")
        return self.runtime

    def weights_arena(self) -> Arena:
        """Make the arena for the weights of one model and of its successors."""

        def count(nbytes: int) -> None:
            self.nbytes["weights"] += nbytes

        chunk = CHUNK if self.runtime.device.type == "cpu" else DEVICE_CHUNK
        return Arena(lambda nbytes: self._reserve(nbytes, "weights"), count, chunk)

    def trim(self) -> None:
        """Return memory that the runtime keeps for its next allocations to the device, if it keeps any."""
        if isinstance(self.runtime, Trims):
            self.runtime.trim()

    def _reserve(self, nbytes: int, tag: MemoryTag) -> Tensor:
        if self._tagged:
            return self.runtime.allocate(nbytes, tag=tag)
        return self.runtime.allocate(nbytes)
