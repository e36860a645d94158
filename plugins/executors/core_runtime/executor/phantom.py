"""A device that is not in this machine: its tensors have shapes, types and places, and no memory.

Owns: the runtime of such a device, and a loader for it. Never does: compute. Called by: the dry run of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from core_runtime.contracts import Kernels, Loader, MemoryTag
from core_runtime.layers.kernels import KernelSet
from core_runtime.models.packing import DTYPES
from core_runtime.specs.checkpoint import CheckpointManifest

NOWHERE: Final = torch.device("meta")
"""Torch's device without memory: a function that reads what one of its tensors holds raises."""
MEMORY: Final = 1 << 40
"""Bytes that such a device says it has: none of them is taken."""


class PhantomRuntime:
    """The `Runtime` of such a device."""

    num_threads = 1

    def __init__(self, kernels: KernelSet) -> None:
        self.device = NOWHERE
        self.kernels: Kernels = kernels

    def activation_dtype(self, dtype: str) -> torch.dtype:
        """The run's dtype, as on every GPU."""
        return DTYPES[dtype]

    def available_memory(self) -> int:
        """More than any model needs."""
        return MEMORY

    def allocate(self, nbytes: int, tag: MemoryTag = "kv") -> Tensor:
        """uint8 [nbytes] on the device."""
        return torch.zeros(nbytes, dtype=torch.uint8, device=self.device)

    def close(self) -> None:
        """There is nothing to give back."""


class PhantomLoader:
    """A loader whose tensors lie on such a device: what it reads of files is their shapes and types alone."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def resolve(self, ref: str) -> CheckpointManifest:
        """See `Loader`."""
        return self._loader.resolve(ref)

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Any:
        """See `Loader`."""
        for name, tensor in self._loader.iter(manifest, reads):
            yield name, tensor.to(NOWHERE)
