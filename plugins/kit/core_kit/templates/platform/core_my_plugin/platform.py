"""The platform and its opened device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core.api.errors import UserError
from core_runtime.contracts import Kernels
from core_runtime.layers.kernels import KernelSet


class MyPluginRuntime:
    """An opened device. Implements `core_runtime.contracts.Runtime`."""

    def __init__(self, kernels: Sequence[Kernels], num_threads: int) -> None:
        self.device = torch.device("cpu")
        self.kernels = KernelSet(kernels, "my_plugin")
        self.num_threads = num_threads

    def activation_dtype(self, dtype: str) -> torch.dtype:
        """Always float32, as the manifest declares."""
        return torch.float32

    def available_memory(self) -> int:
        """Bytes that could be allocated now."""
        return 1 << 30

    def allocate(self, nbytes: int) -> Tensor:
        """Zeroed uint8 [nbytes]."""
        return torch.zeros(nbytes, dtype=torch.uint8)

    def close(self) -> None:
        """Nothing to give back."""


class MyPluginPlatform:
    """Implements `core_runtime.contracts.Platform`."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads

    def open(self, device: str, kernels: Sequence[Kernels]) -> MyPluginRuntime:
        """Open `my_plugin` or `my_plugin:0`. Raises UserError for another device."""
        if device not in ("my_plugin", "my_plugin:0"):
            raise UserError(f"device '{device}': there is only 'my_plugin:0'.")
        return MyPluginRuntime(kernels, self.num_threads)
