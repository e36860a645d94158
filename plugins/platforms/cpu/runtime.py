"""The opened CPU: memory, threads and kernels.

Owns: torch's thread count in this process. Never does: compute. Called by: the worker.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from core.api.errors import UserError
from core.layers.kernels import KernelSet
from core.plugin.contracts import CapturedCalls, Kernels
from plugins.platforms.cpu.memory import available_memory
from plugins.platforms.cpu.tape import record


class CpuRuntime:
    """One CPU. Activations are float32 in every run dtype; kernels round inputs of a product as it asks."""

    def __init__(self, kernels: KernelSet, num_threads: int) -> None:
        self.device = torch.device("cpu")
        self.kernels: Kernels = kernels
        self.num_threads = num_threads
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1 if kernels.native else num_threads)

    def activation_dtype(self, dtype: str) -> torch.dtype:
        """Always float32."""
        return torch.float32

    def available_memory(self) -> int:
        """Bytes that could be allocated now."""
        return available_memory()

    def allocate(self, nbytes: int) -> Tensor:
        """Zeroed uint8 [nbytes], page-aligned; pages, huge ones where there are any, are taken when first written."""
        memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages serves small ones
                memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=torch.uint8)[:nbytes]

    def capture(self, run: Callable[[], None], num_rows: int, num_seqs: int) -> CapturedCalls | None:
        """Run once and keep the native calls as a tape; None when a call was not on `num_rows` rows."""
        return record(run, num_rows, num_seqs)

    def close(self) -> None:
        """Give torch its threads back."""
        torch.set_num_threads(self._threads_before)


class CpuPlatform:
    """The platform `cpu`. num_threads: compute threads."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads

    def open(self, device: str, kernels: Sequence[Kernels]) -> CpuRuntime:
        """Open `cpu`, the only device there is."""
        if device not in ("cpu", "cpu:0"):
            raise UserError(f"device '{device}': the cpu platform has only 'cpu'.")
        return CpuRuntime(KernelSet(kernels, "cpu"), self.num_threads)
