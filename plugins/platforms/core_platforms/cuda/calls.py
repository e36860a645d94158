"""The small set of calls through which the platform uses a device.

Owns: the set (`DeviceCalls`) and its implementation for torch's devices. Never does: decide when a call is made.
Called by: the runtime. Tests run the same runtime over a fake device (`core_kit.devices.fake_device`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """An event: a position in the order of a device's work."""

    def synchronize(self) -> None:
        """Wait until the device has reached this event."""
        ...


class RecordedGraph(Protocol):
    """A recorded graph of device work."""

    def replay(self) -> None:
        """Run the recorded work again, on the same memory."""
        ...


class DeviceCalls(Protocol):
    """The calls of one device.
    device: as torch names it.
    """

    device: torch.device

    def use(self) -> None:
        """Make this the calling thread's current device."""
        ...

    def memory(self) -> tuple[int, int]:
        """Return (free, total) memory in bytes."""
        ...

    def zeros(self, nbytes: int) -> Tensor:
        """Allocate zeroed uint8 [nbytes] on the device."""
        ...

    def pinned(self, nbytes: int) -> Tensor:
        """Allocate pinned host memory uint8 [nbytes], which the device reads and writes directly."""
        ...

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy in stream order; one of the two tensors is on the device, the other in pinned memory."""
        ...

    def mark(self) -> Mark:
        """Return an event after all work submitted so far."""
        ...

    def copy_aside(self, target: Tensor, source: Tensor, after: Mark | None) -> Mark:
        """Copy like `copy`, but in the order of such copies alone, once the device has reached `after`. Returns the event
        after the copy.
        """
        ...

    def wait_aside(self, mark: Mark) -> None:
        """Let work submitted from now on wait for an event of `copy_aside`."""
        ...

    def fetch(self, target: Tensor, source: Tensor, after: Mark) -> Mark:
        """Copy weights from pinned memory, in the order of such copies alone, once the device has reached `after`. May be
        recorded. Returns the event after the copy, for `wait_aside`.
        """
        ...

    def in_place(self, host: Tensor) -> Tensor:
        """Return pinned memory as the device's kernels read it, uint8 [nbytes]. Raises RuntimeError where they cannot."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has finished all submitted work."""
        ...

    def record(self, run: Callable[[], None]) -> RecordedGraph:
        """Record the work that `run` submits, without executing it. All recordings share their temporary memory.

        Raises RuntimeError for work that cannot be recorded.
        """
        ...

    def give_back(self) -> None:
        """Return cached memory to the driver."""
        ...


class TorchCalls:
    """`DeviceCalls` over one of torch's device modules: `torch.cuda`, which also serves ROCm, or `torch.xpu`.

    module: the device module.
    device: one of its devices.
    """

    def __init__(self, module: ModuleType, device: torch.device) -> None:
        self.device = device
        self._module: Any = module
        self._pool: Any = None
        self._aside: Any = None
        self._fetching: Any = None

    def use(self) -> None:
        """Make this the calling thread's current device."""
        self._module.set_device(self.device)

    def memory(self) -> tuple[int, int]:
        """Return (free, total) memory in bytes, as the driver reports it."""
        free, total = self._module.mem_get_info(self.device)
        return int(free), int(total)

    def zeros(self, nbytes: int) -> Tensor:
        """Allocate zeroed uint8 [nbytes] on the device."""
        return torch.zeros(nbytes, dtype=torch.uint8, device=self.device)

    def pinned(self, nbytes: int) -> Tensor:
        """Allocate pinned host memory uint8 [nbytes]."""
        return torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy asynchronously, in stream order."""
        target.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        """Return an event after all work submitted so far."""
        event = self._module.Event()
        event.record()
        mark: Mark = event
        return mark

    def copy_aside(self, target: Tensor, source: Tensor, after: Mark | None) -> Mark:
        """Copy asynchronously, in a stream of its own."""
        if self._aside is None:
            self._aside = self._module.Stream(self.device)
        with self._module.stream(self._aside):
            if after is not None:
                self._aside.wait_event(after)
            self.copy(target, source)
            return self.mark()

    def wait_aside(self, mark: Mark) -> None:
        """Let the current stream wait for an event of the other one."""
        self._module.current_stream().wait_event(mark)

    def fetch(self, target: Tensor, source: Tensor, after: Mark) -> Mark:
        """Copy weights asynchronously, in a stream of their own. It waits for an event of the current stream, so where
        that is recorded, the copy is recorded too.
        """
        if self._fetching is None:
            self._fetching = self._module.Stream(self.device)
        with self._module.stream(self._fetching):
            self._fetching.wait_event(after)
            self.copy(target, source)
            return self.mark()

    def in_place(self, host: Tensor) -> Tensor:
        """Return pinned memory at its own address, which is valid on the device, too."""
        if self.device.type != "cuda":
            raise RuntimeError(f"{self.device.type} has no addresses that are valid on both sides")
        storage = torch._C._construct_storage_from_data_pointer(host.data_ptr(), self.device, host.nbytes)
        return torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage, 0, (host.nbytes,))

    def synchronize(self) -> None:
        """Wait until the device has finished all submitted work."""
        self._module.synchronize(self.device)

    def record(self, run: Callable[[], None]) -> RecordedGraph:
        """Record the work that `run` submits as a graph."""
        module = self._module
        # "global", torch's default, fails when any other thread allocates meanwhile. XPU has no such argument.
        options = {"capture_error_mode": "thread_local"} if hasattr(module, "CUDAGraph") else {}
        graph_type = getattr(module, "CUDAGraph", None) or getattr(module, "XPUGraph", None)
        if graph_type is None:
            raise RuntimeError(f"{module.__name__} of torch {torch.__version__} has no graphs")
        graph = graph_type()
        if self._pool is None:
            self._pool = module.graph_pool_handle()
        # The outer context restores the stream: torch's `graph` leaves its own one current when it fails.
        with module.stream(module.current_stream()), module.graph(graph, pool=self._pool, **options):
            run()
        recorded: RecordedGraph = graph
        return recorded

    def give_back(self) -> None:
        """Return torch's cached memory to the driver."""
        self._module.empty_cache()
