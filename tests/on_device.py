"""Tests of kernels on another device than the processor: `pytest --on-device cuda tests/cuda`.

Owns: where tensors of tests are made, and what memory without content holds. Never does: change what a test asserts.
Called by: conftest, where the option is given.

Random numbers are drawn by the processor, so that they are the same everywhere. What a kernel forgets to write is NaN.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

VARIABLE = "CORE_TEST_DEVICE"
FACTORIES = set(_device_constructors())
UNDEFINED = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
DRAWS = {"normal_", "uniform_", "random_", "exponential_"}
POISON = 0x7F
"""Value of integers in memory without content."""


def device_name() -> str:
    """The device of tests of kernels: the processor, on which they are interpreted, unless the option was given."""
    return os.environ.get(VARIABLE, "cpu")


def use_device(device: str) -> None:
    """From now on, tensors are made on this device."""
    os.environ[VARIABLE] = device
    OnDevice(device).__enter__()
    from_numpy = torch.from_numpy  # no mode sees its calls

    def made(array: Any) -> Tensor:
        return from_numpy(array).to(device)

    torch.from_numpy = made


class OnDevice(TorchFunctionMode):  # type: ignore[misc]
    """While entered, factories make their tensors on a device. device: its name, such as `cuda`."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device)

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Make, draw or read tensors as the class says; call anything else as it is."""
        options = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        is_factory = function in FACTORIES and options.get("device") is None
        if is_factory:
            options.pop("pin_memory", None)
        if name == "numpy":
            return function(args[0].cpu(), *args[1:], **options)
        if name in DRAWS and isinstance(args[0], Tensor):
            return args[0].copy_(function(args[0].cpu(), *args[1:], **options))
        made = function(*args, **options)
        if name in UNDEFINED and made.device.type != "meta":
            _poison(made)
        return made.to(self._device) if is_factory and made.device.type == "cpu" else made


def _poison(memory: Tensor) -> None:
    if memory.is_floating_point():
        memory.fill_(torch.nan)
    elif memory.dtype is not torch.bool:
        memory.fill_(POISON)
