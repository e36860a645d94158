"""A phantom device, which is not in this machine: its tensors have shapes, types and devices, but no memory.

Owns: the runtime of such a device, and a loader for it. Never does: compute. Called by: the dry run of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from core_runtime.contracts import Kernels, Loader, MemoryTag
from core_runtime.layers.kernels import KernelSet
from core_runtime.models.tensors.packing import DTYPES
from core_runtime.specs.checkpoint import CheckpointManifest

NOWHERE: Final = torch.device("meta")
"""Torch's device without memory: reading a value of its tensors raises an error."""
MEMORY: Final = 1 << 40
"""Bytes that a phantom device reports as available; none of them is used."""


class PhantomRuntime:
    """The `Runtime` of a phantom device."""

    num_threads = 1

    def __init__(self, kernels: KernelSet) -> None:
        self.device = NOWHERE
        self.kernels: Kernels = kernels

    def activation_dtype(self, dtype: str) -> torch.dtype:
        """Return the run's dtype, as on every GPU."""
        return DTYPES[dtype]

    def available_memory(self) -> int:
        """Return more bytes than any model needs."""
        return MEMORY

    def allocate(self, nbytes: int, tag: MemoryTag = "kv") -> Tensor:
        """Return uint8 [nbytes] on the phantom device."""
        return torch.zeros(nbytes, dtype=torch.uint8, device=self.device)

    def close(self) -> None:
        """Do nothing: there is no memory to release."""


TYPES: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""Types in which a tensor has the shape and type that its checkpoint says, so that it need not be read."""


class PhantomLoader:
    """A loader of tensors on a phantom device: it has their shapes and types, and reads no values."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def resolve(self, ref: str) -> CheckpointManifest:
        """Resolve with the inner loader."""
        return self._loader.resolve(ref)

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Any:
        """Yield the named tensors without their values."""
        unknown: list[str] = []
        for name in reads:
            info = manifest.tensors.get(name)
            if info is None or info.dtype not in TYPES:
                unknown.append(name)
                continue
            yield name, torch.empty(info.shape, dtype=TYPES[info.dtype], device=NOWHERE)
        for name, tensor in self._loader.iter(manifest, unknown):
            yield name, tensor.to(NOWHERE)
