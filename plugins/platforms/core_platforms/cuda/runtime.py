"""The runtime of an opened GPU.

Owns: memory, kernels and recordings of one device, and the order of its work. Never does: compute.
Called by: the worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from core.api.errors import UserError
from core_platforms.cuda.calls import DeviceCalls
from core_platforms.cuda.failures import meaning
from core_platforms.cuda.graphs import Graphs
from core_platforms.cuda.virtual_memory import TaggedMemory
from core_runtime.contracts import CapturedCalls, Event, Kernels, MemoryTag
from core_runtime.layers.kernels import KernelSet

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
MIB = 1 << 20


class DeviceRuntime:
    """The runtime of one device. Activations have the run's dtype.

    All its work runs in one stream: a step's uploads, computation and downloads follow those of the previous step. Only
    KV blocks, and weights from host memory, are copied in others.
    """

    num_threads = 1

    def __init__(self, calls: DeviceCalls, kernels: KernelSet, graphs: Graphs) -> None:
        self.device = calls.device
        self.kernels: Kernels = kernels
        self._calls = calls
        self._graphs = graphs
        self._thread = threading.get_ident()

    def activation_dtype(self, dtype: str) -> torch.dtype:
        """Return the run's dtype."""
        return DTYPES[dtype]

    def available_memory(self) -> int:
        """Return the free bytes on the device."""
        free, _ = self._calls.memory()
        return free

    def allocate(self, nbytes: int, tag: MemoryTag = "kv") -> Tensor:
        """Allocate zeroed uint8 [nbytes] on the device."""
        return self._calls.zeros(nbytes)

    def host_memory(self, nbytes: int) -> Tensor:
        """Allocate pinned host memory: the `Downloads` contract."""
        return self._calls.pinned(nbytes)

    def upload(self, device: Tensor, host: Tensor) -> Callable[[], None]:
        """Copy host data to the device: the `Uploads` contract. Every step begins with an upload, so this is where a
        new thread makes the device current.
        """
        thread = threading.get_ident()
        if thread != self._thread:
            self._calls.use()
            self._thread = thread
        self._calls.copy(device, host)
        return self._calls.mark().synchronize

    def download(self, host: Tensor, device: Tensor) -> Callable[[], None]:
        """Copy device data to the host: the `Downloads` contract."""
        self._calls.copy(host, device)
        return self._calls.mark().synchronize

    def event(self) -> Event:
        """Return an event after all kernels called so far: the `CopiesAside` contract."""
        return self._calls.mark()

    def copy_aside(self, target: Tensor, source: Tensor, after: Event | None) -> Event:
        """Copy while kernels compute: the `CopiesAside` contract."""
        return self._calls.copy_aside(target, source, after)

    def wait_aside(self, event: Event) -> None:
        """Let later kernels wait for a copy: the `CopiesAside` contract."""
        self._calls.wait_aside(event)

    def fetch(self, target: Tensor, source: Tensor, after: Event) -> Event:
        """Copy weights ahead of their use: the `FetchesWeights` contract."""
        return self._calls.fetch(target, source, after)

    def in_place(self, host: Tensor) -> Tensor:
        """Return host memory as kernels read it: the `FetchesWeights` contract."""
        try:
            return self._calls.in_place(host)
        except RuntimeError as error:
            raise UserError(f"--offload-backend uva: {error}; choose prefetch.") from error

    def capture_sizes(self, kind: str, max_rows: int) -> Sequence[int]:
        """Return the row counts to record: the `CapturesSizes` contract."""
        return self._graphs.sizes(kind, max_rows)

    def capture(self, run: Callable[[], None], num_rows: int, num_seqs: int) -> CapturedCalls | None:
        """Record the calls as a graph: the `Captures` contract."""
        return self._graphs.capture(run, num_rows)

    def trim(self) -> None:
        """Return torch's cached memory to the driver: the `Trims` contract."""
        self._calls.synchronize()
        self._calls.give_back()

    def meaning(self, error: Exception) -> str | None:
        """Return what an error of the device means: the `ExplainsFailures` contract."""
        return meaning(error, str(self.device), self.available_memory())

    def close(self) -> None:
        """Return cached memory to the driver."""
        self.trim()


class SleepingRuntime(DeviceRuntime):
    """A runtime whose memory can be released by tag. memory: its tagged allocations."""

    def __init__(self, calls: DeviceCalls, kernels: KernelSet, graphs: Graphs, memory: TaggedMemory) -> None:
        super().__init__(calls, kernels, graphs)
        self._memory = memory

    def allocate(self, nbytes: int, tag: MemoryTag = "kv") -> Tensor:
        """Allocate zeroed uint8 [nbytes] on the device. Raises UserError when there is not enough."""
        try:
            return self._memory.allocate(nbytes, tag)
        except MemoryError:
            raise UserError(self._too_little(f"{nbytes // MIB} MiB for {tag}")) from None

    def release(self, tag: MemoryTag) -> int:
        """Release the memory of a tag: the `Releases` contract."""
        return self._memory.release(tag)

    def restore(self, tag: MemoryTag) -> None:
        """Bring released memory back: the `Releases` contract."""
        try:
            self._memory.restore(tag)
        except MemoryError:
            raise UserError(self._too_little(f"the memory for {tag}, which was given up")) from None

    def close(self) -> None:
        """Return all memory to the driver."""
        self._calls.synchronize()
        self._memory.close()
        self.trim()

    def _too_little(self, wanted: str) -> str:
        free = self.available_memory() // MIB
        return (
            f"{self.device}: {wanted} cannot be had, {free} MiB are free; end what else uses the device, or lower "
            "--gpu-memory-utilization."
        )
