"""The platforms of GPUs that torch drives: `cuda`, and with other rows `rocm` and `xpu`.

Owns: what differs between them, and the opening of a device. Never does: compute. Called by: the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from core.api.errors import UserError
from core_platforms.cuda.arguments import DeviceArguments
from core_platforms.cuda.calls import TorchCalls
from core_platforms.cuda.driver_memory import DriverMemory
from core_platforms.cuda.graphs import Graphs
from core_platforms.cuda.runtime import MIB, DeviceRuntime, SleepingRuntime
from core_platforms.cuda.virtual_memory import TaggedMemory
from core_runtime.contracts import Kernels
from core_runtime.layers.kernels import KernelSet


@dataclass(frozen=True, slots=True)
class Maker:
    """One maker's devices.

    name: of the platform.
    module: of torch that drives them; torch's own name for the device begins with it.
    build: what torch must have been built with, for people.
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
    """The platform of one maker. arguments: its own."""

    num_threads = 1

    def __init__(self, maker: Maker, arguments: DeviceArguments) -> None:
        self._maker = maker
        self._arguments = arguments

    def open(self, device: str, kernels: Sequence[Kernels]) -> DeviceRuntime:
        """Open device `NAME:N`. Raises UserError when torch cannot use it."""
        maker = self._maker
        index = self._index(device)
        module = getattr(torch, maker.module)
        if not self._is_built() or not module.is_available():
            raise UserError(
                f"device '{device}': the installed torch {torch.__version__} has no {maker.build}; install one that has."
            )
        count = module.device_count()
        if index >= count:
            raise UserError(f"device '{device}': torch sees {count} of them; choose {maker.name}:0 to {count - 1}.")
        calls = TorchCalls(module, torch.device(maker.module, index))
        calls.use()
        chosen = KernelSet(kernels, maker.name)
        graphs = Graphs(calls, self._arguments.graph_mib * MIB, self._arguments.largest_graph)
        if not (maker.virtual and self._arguments.virtual_memory):
            return DeviceRuntime(calls, chosen, graphs)
        calls.zeros(1)  # the driver has a context from now on
        memory = TaggedMemory(DriverMemory(calls.device), calls.synchronize)
        return SleepingRuntime(calls, chosen, graphs, memory)

    def _index(self, device: str) -> int:
        name, _, number = device.partition(":")
        if name != self._maker.name or not (number.isdigit() or not number):
            raise UserError(f"device '{device}': expected {self._maker.name}:N.")
        return int(number or 0)

    def _is_built(self) -> bool:
        """Whether `torch.cuda` is the one of this maker: it drives AMD's devices, too."""
        is_hip = torch.version.hip is not None
        return is_hip == (self._maker.name == "rocm")
