"""The opened CPU: memory, threads and kernels.

Owns: torch's thread count, the active instruction set and the binding of threads in this process. Never does: compute.
Called by: the worker.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from types import ModuleType

import torch
from torch import Tensor

from core.api.errors import UserError
from core.api.reason import Reason
from core_platforms.cpu.extension import check_isa, kernels_or_reason
from core_platforms.cpu.follower import Follower
from core_platforms.cpu.memory import available_memory
from core_platforms.cpu.pages import PieceCopies
from core_platforms.cpu.ranks import SharedCommunicator, SharedGroup
from core_platforms.cpu.tape import record
from core_runtime.contracts import CapturedCalls, Kernels, MemoryTag
from core_runtime.layers.kernels import KernelSet

HUGE_PAGE = 2 << 20


class CpuRuntime:
    """The opened CPU. Activations are float32 in every run dtype; kernels round a product's inputs as the dtype
    demands.

    undo: restores the process state from before the opening, except torch's threads.
    native: the extension, which makes the system back memory in idle time, before the first write; None: not built.
    prefault_bytes: limit on the allocated bytes that are prefaulted.
    """

    def __init__(
        self,
        kernels: KernelSet,
        num_threads: int,
        undo: contextlib.ExitStack,
        native: ModuleType | None = None,
        prefault_bytes: int = 0,
    ) -> None:
        self.device = torch.device("cpu")
        self.kernels: Kernels = kernels
        self.num_threads = num_threads
        self._undo = undo
        self._native = native
        self._prefault_bytes = prefault_bytes
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1 if kernels.native else num_threads)

    def activation_dtype(self, dtype: str) -> torch.dtype:
        """Return float32, whatever the run dtype is."""
        return torch.float32

    def available_memory(self) -> int:
        """Return the bytes that could be allocated now."""
        return available_memory()

    def allocate(self, nbytes: int, tag: MemoryTag = "kv") -> Tensor:
        """Allocate zeroed uint8 [nbytes], page-aligned; the system backs pages (huge ones where available) on first
        write.

        Pages of the KV cache are also backed in idle time; weights begin at a huge-page boundary. The first pages of the KV
        cache are small: the first token writes a few bytes of each layer's buffer, and a huge page for each took it 0.37 s
        instead of 0.01 (30 layers, on a virtual machine whose host provides memory on demand).
        """
        slack = HUGE_PAGE if tag == "weights" else 0
        size = max(nbytes, 1) + slack
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        everything = _in_huge_pages(memory, HUGE_PAGE if tag == "kv" else 0)
        start = -everything.data_ptr() % HUGE_PAGE if slack else 0
        buffer = everything[start : start + nbytes]
        if tag == "kv":
            self._back_in_idle_time(buffer)
        return buffer

    def allocate_in(self, descriptor: int, offset: int, nbytes: int) -> Tensor:
        """Map uint8 [nbytes] of a file; the system backs its pages as those of the KV cache."""
        buffer = _in_huge_pages(mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED, offset=offset), HUGE_PAGE)
        self._back_in_idle_time(buffer)
        return buffer

    def _back_in_idle_time(self, buffer: Tensor) -> None:
        ahead = min(buffer.nbytes, self._prefault_bytes)
        if self._native is not None and ahead > 0:
            self._native.prefault(buffer.data_ptr(), ahead)
            self._prefault_bytes -= ahead

    def page_copies(self, buffers: Sequence[Tensor]) -> PieceCopies | None:
        """Return copies of the KV blocks in these buffers; None without the extension."""
        return None if self._native is None else PieceCopies(self._native, buffers)

    def capture(self, run: Callable[[], None], num_rows: int, num_seqs: int) -> CapturedCalls | None:
        """Run once and keep the native calls as a tape; None when a call's row count was not `num_rows`."""
        return record(run, num_rows, num_seqs)

    def communicator(self, group: SharedGroup) -> SharedCommunicator:
        """Join a group of ranks in shared memory."""
        return SharedCommunicator(group)

    def close(self) -> None:
        """Restore torch's threads, the process's processor binding and its previous instruction set."""
        torch.set_num_threads(self._threads_before)
        self._undo.close()


def _in_huge_pages(memory: mmap.mmap, first: int = 0) -> Tensor:
    """Return all of a mapping as uint8 [nbytes], in huge pages from its byte `first` on."""
    if hasattr(mmap, "MADV_HUGEPAGE") and len(memory) > first:
        with contextlib.suppress(OSError):  # on a kernel without huge pages, small ones do
            memory.madvise(mmap.MADV_HUGEPAGE, first, len(memory) - first)
    return torch.frombuffer(memory, dtype=torch.uint8)


class CpuPlatform:
    """The platform `cpu`, before it is opened.

    num_threads: compute threads.
    processors: the processor of each thread, or empty.
    spin_microseconds: how long threads wait for more work before they sleep.
    isa: the instruction set to use; None: the active one.
    prefault_bytes: how much of the allocated memory the system backs in idle time, before the first write.
    follow: whether the number of threads follows the process's share of the machine.

    Raises UserError for an instruction set that does not run here.
    """

    def __init__(
        self,
        num_threads: int,
        processors: Sequence[int] = (),
        spin_microseconds: int = 30,
        isa: str | None = None,
        *,
        prefault_bytes: int = 0,
        follow: bool = False,
    ) -> None:
        self.num_threads = num_threads
        self.processors = processors
        self.spin_microseconds = spin_microseconds
        self._prefault_bytes = prefault_bytes
        self._follow = follow
        self._native = kernels_or_reason()
        self._undo = contextlib.ExitStack()
        if isa is not None:
            check_isa(self._native, isa)
        if isa is not None and not isinstance(self._native, Reason):
            self._undo.callback(self._native.set_isa, self._native.isa())
            self._native.set_isa(isa)

    def open(self, device: str, kernels: Sequence[Kernels]) -> CpuRuntime:
        """Open `cpu`, the platform's only device."""
        if device not in ("cpu", "cpu:0"):
            raise UserError(f"device '{device}': the cpu platform has only 'cpu'.")
        chosen = KernelSet(kernels, "cpu")
        if isinstance(self._native, Reason):
            return CpuRuntime(chosen, self.num_threads, self._undo)
        self._native.pool_spin(self.spin_microseconds)
        self._bind(self._native)
        self._undo.callback(self._native.prefault_stop)
        if self._follow:
            follower = Follower(self._native, self.num_threads, threading.get_native_id())
            follower.start()
            self._undo.callback(follower.close)
        return CpuRuntime(chosen, self.num_threads, self._undo, self._native, self._prefault_bytes)

    def _bind(self, native: ModuleType) -> None:
        """Bind the calling thread, which also computes, and the pool's threads.

        Raises UserError where the system refuses.
        """
        if not self.processors:
            return
        before = os.sched_getaffinity(0)
        self._undo.callback(
            native.pool_bind, []
        )  # this undo runs last, once the caller may run anywhere again: the pool's threads then inherit its mask
        self._undo.callback(os.sched_setaffinity, 0, before)
        first, *others = self.processors
        os.sched_setaffinity(0, {first})
        if not native.pool_bind(others):
            raise UserError(f"thread_binding: the system does not bind threads to processors {list(self.processors)}.")
