"""The GPU platforms that torch drives: `cuda`, `rocm` and `xpu`.

Owns: the differences between vendors, and the opening of a device. Never does: compute. Called by: the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from core.api.errors import UserError
from core_platforms.cuda.arguments import DeviceArguments
from core_platforms.cuda.calls import TorchCalls
from core_platforms.cuda.driver_memory import DriverMemory
from core_platforms.cuda.failures import at_opening
from core_platforms.cuda.graphs import Graphs
from core_platforms.cuda.runtime import MIB, DeviceRuntime, SleepingRuntime
from core_platforms.cuda.virtual_memory import TaggedMemory
from core_runtime.contracts import Kernels
from core_runtime.layers.kernels import KernelSet


@dataclass(frozen=True, slots=True)
class Maker:
    """One vendor's devices.

    name: of the platform.
    module: the torch module that drives the devices; torch's device names begin with its name.
    build: the kind of torch build required, for messages.
    virtual: whether the driver's virtual memory is used.
    """

    name: str
    module: str
    build: str
    virtual: bool


MAKERS = {
    "cuda": Maker("cuda", "cuda", "CUDA", virtual=True),
    "rocm": Maker("rocm", "cuda", "ROCm", virtual=False),
    "xpu": Maker("xpu", "xpu", "XPU", virtual=False),
}


class DevicePlatform:
    """The platform of one vendor. arguments: the platform's own."""

    num_threads = 1

    def __init__(self, maker: Maker, arguments: DeviceArguments) -> None:
        self._maker = maker
        self._arguments = arguments

    def open(self, device: str, kernels: Sequence[Kernels]) -> DeviceRuntime:
        """Open device `NAME:N`. Raises UserError when torch cannot use it."""
        index = self._index(device)
        if not self._is_built():
            raise UserError(
                f"device '{device}': the installed torch {torch.__version__} has no {self._maker.build}; install one that has."
            )
        try:
            return self._opened(device, index, kernels)
        except RuntimeError as error:
            raise UserError(at_opening(error, device)) from error

    def _opened(self, device: str, index: int, kernels: Sequence[Kernels]) -> DeviceRuntime:
        """Open a device. Raises RuntimeError when torch cannot use it."""
        maker = self._maker
        module = getattr(torch, maker.module)
        module.init()
        count = module.device_count()
        if index >= count:
            raise UserError(f"device '{device}': torch sees {count} of them; choose {maker.name}:0 to {count - 1}.")
        calls = TorchCalls(module, torch.device(maker.module, index))
        calls.use()
        calls.zeros(1)  # creates the driver's context
        chosen = KernelSet(kernels, maker.name)
        graphs = Graphs(calls, self._arguments.graph_mib * MIB, self._arguments.largest_graph)
        if not (maker.virtual and self._arguments.virtual_memory):
            return DeviceRuntime(calls, chosen, graphs)
        memory = TaggedMemory(DriverMemory(calls.device), calls.synchronize)
        return SleepingRuntime(calls, chosen, graphs, memory)

    def _index(self, device: str) -> int:
        name, _, number = device.partition(":")
        if name != self._maker.name or not (number.isdigit() or not number):
            raise UserError(f"device '{device}': expected {self._maker.name}:N.")
        return int(number or 0)

    def _is_built(self) -> bool:
        """Whether this torch was built for this vendor: `torch.cuda` also drives AMD's devices."""
        built = {"cuda": torch.version.cuda, "rocm": torch.version.hip, "xpu": torch.version.xpu}
        return built[self._maker.name] is not None
