"""A device of reference operations."""

import torch

from core.layers.kernels import KernelSet


class ExampleRuntime:
    """The opened device."""

    num_threads = 1

    def __init__(self, kernels):
        self.device = torch.device("cpu")
        self.kernels = KernelSet(kernels, "frozen_cpu")

    def activation_dtype(self, dtype):
        """Always float32."""
        return torch.float32

    def available_memory(self):
        """A guess."""
        return 1 << 30

    def allocate(self, nbytes):
        """Zeroed bytes."""
        return torch.zeros(nbytes, dtype=torch.uint8)

    def close(self):
        """Nothing to give back."""


class ExamplePlatform:
    """The platform contract."""

    num_threads = 1

    def open(self, device, kernels):
        """Any of its devices."""
        return ExampleRuntime(kernels)
