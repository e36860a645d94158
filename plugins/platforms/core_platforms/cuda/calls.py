"""Everything that the platform asks of a device, as one small set of calls.

Owns: that set (`DeviceCalls`) and its form for torch's devices. Never does: decide when a call is made.
Called by: the runtime. Tests run the same runtime over a device that they made up (`core_kit.fake_device`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """A place in the order of a device's work (an event)."""

    def synchronize(self) -> None:
        """Wait until the device has come there."""
        ...


class RecordedGraph(Protocol):
    """Recorded work of a device."""

    def replay(self) -> None:
        """Do it again, on the same memory."""
        ...


class DeviceCalls(Protocol):
    """One device.

    device: as torch names it.
    """

    device: torch.device

    def use(self) -> None:
        """Make it the calling thread's device."""
        ...

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and that there are."""
        ...

    def zeros(self, nbytes: int) -> Tensor:
        """Zeroed uint8 [nbytes] on the device."""
        ...

    def pinned(self, nbytes: int) -> Tensor:
        """uint8 [nbytes] of the host, which the device reads and writes by itself."""
        ...

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy, in the order of the device's work; one of both is on the device, the other pinned."""
        ...

    def mark(self) -> Mark:
        """The place behind all work so far."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done everything."""
        ...

    def record(self, run: Callable[[], None]) -> RecordedGraph:
        """Record the work that `run` asks for, which is not done now. All recordings share their temporary memory.

        Raises RuntimeError where it asks for what cannot be recorded.
        """
        ...

    def give_back(self) -> None:
        """Give cached memory back to the driver."""
        ...


class TorchCalls:
    """A device of one of torch's modules for devices: `torch.cuda`, which serves ROCm as well, or `torch.xpu`.

    module: that module.
    device: one of its devices.
    """

    def __init__(self, module: ModuleType, device: torch.device) -> None:
        self.device = device
        self._module: Any = module
        self._pool: Any = None

    def use(self) -> None:
        """See `DeviceCalls`."""
        self._module.set_device(self.device)

    def memory(self) -> tuple[int, int]:
        """See `DeviceCalls`."""
        free, total = self._module.mem_get_info(self.device)
        return int(free), int(total)

    def zeros(self, nbytes: int) -> Tensor:
        """See `DeviceCalls`."""
        return torch.zeros(nbytes, dtype=torch.uint8, device=self.device)

    def pinned(self, nbytes: int) -> Tensor:
        """See `DeviceCalls`."""
        return torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: Tensor, source: Tensor) -> None:
        """See `DeviceCalls`."""
        target.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        """See `DeviceCalls`."""
        event = self._module.Event()
        event.record()
        mark: Mark = event
        return mark

    def synchronize(self) -> None:
        """See `DeviceCalls`."""
        self._module.synchronize(self.device)

    def record(self, run: Callable[[], None]) -> RecordedGraph:
        """See `DeviceCalls`."""
        graph_type = getattr(self._module, "CUDAGraph", None) or getattr(self._module, "XPUGraph", None)
        if graph_type is None:
            raise RuntimeError(f"{self._module.__name__} of torch {torch.__version__} has no graphs")
        graph = graph_type()
        if self._pool is None:
            self._pool = self._module.graph_pool_handle()
        with self._module.graph(graph, pool=self._pool):
            run()
        recorded: RecordedGraph = graph
        return recorded

    def give_back(self) -> None:
        """See `DeviceCalls`."""
        self._module.empty_cache()
