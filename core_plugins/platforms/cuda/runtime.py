"""An opened NVIDIA GPU.

Owns: memory and kernels of one device. Never does: compute. Called by: the worker.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core.api.errors import UserError
from core.layers.kernels import KernelSet
from core.plugin.contracts import Kernels, MemoryTag

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class CudaRuntime:
    """One GPU. Activations have the run's dtype."""

    num_threads = 1

    def __init__(self, device: torch.device, kernels: KernelSet) -> None:
        self.device = device
        self.kernels: Kernels = kernels

    def activation_dtype(self, dtype: str) -> torch.dtype:
        """The run's dtype."""
        return DTYPES[dtype]

    def available_memory(self) -> int:
        """Free bytes on the device."""
        return int(torch.cuda.mem_get_info(self.device)[0])

    def allocate(self, nbytes: int, tag: MemoryTag = "kv") -> Tensor:
        """Zeroed uint8 [nbytes] on the device."""
        return torch.zeros(nbytes, dtype=torch.uint8, device=self.device)

    def close(self) -> None:
        """Give cached memory back to the driver."""
        torch.cuda.empty_cache()


class CudaPlatform:
    """The platform `cuda`."""

    num_threads = 1

    def open(self, device: str, kernels: Sequence[Kernels]) -> CudaRuntime:
        """Open `cuda:N`. Raises UserError when torch cannot use the device."""
        if not torch.cuda.is_available():
            raise UserError(
                f"device '{device}': the installed torch {torch.__version__} has no CUDA; install one that has."
            )
        opened = torch.device(device)
        torch.cuda.set_device(opened)
        return CudaRuntime(opened, KernelSet(kernels, "cuda"))
