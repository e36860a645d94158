"""Recording of kernel launches without launching, and compilation from the records.

Owns: the properties of a launch that determine the compiled kernel. Never does: launch. Called by: compilation ahead,
tuning.

For a tensor these are its type and whether it begins at a multiple of 16 bytes; for a number, its type and whether it
is 1 or a multiple of 16, unless the kernel turns that off.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from triton.runtime import driver
from triton.runtime.jit import JITFunction, MockTensor

from core_kernels.triton.compiling.chips import Chip
from core_kernels.triton.compiling.launch import architecture_of

ALIGNMENT: Final = 16
LARGEST_I32: Final = (1 << 31) - 1
PLAIN: Final = 3
"""An integer that Triton does not treat specially, as it does 1 and multiples of 16."""
TYPES: Final = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i1": torch.bool,
}
"""torch dtypes by Triton's type names."""
LAUNCHERS: Final = {
    "cuda": ("triton.backends.nvidia.driver", "CudaLauncher"),
    "hip": ("triton.backends.amd.driver", "HIPLauncher"),
}
"""Where Triton's backends have their launchers."""


class Pointer(NamedTuple):
    """A tensor argument of a launch."""

    dtype: torch.dtype
    is_aligned: bool


class Number(NamedTuple):
    """An integer argument of a launch, and a value that represents all integers with the same kernel."""

    stands_for: int


class Launch(NamedTuple):
    """The inputs of a kernel's compilation.

    function: `module:name`.
    arguments: run-time arguments by name.
    constants: compile-time arguments and compiler options by name.
    """

    function: str
    arguments: tuple[tuple[str, Any], ...]
    constants: tuple[tuple[str, Any], ...]

    @property
    def kernel(self) -> str:
        """Return the kernel's name."""
        return self.function.partition(":")[2]

    @property
    def title(self) -> str:
        """Return a description for messages: the kernel, its types and its purpose."""
        types = dict.fromkeys(str(kind.dtype)[6:] for _, kind in self.arguments if isinstance(kind, Pointer))
        sizes = [f"{name}={value}" for name, value in self.constants if value is not None and not callable(value)]
        return f"{self.kernel} of {', '.join(types)}: {' '.join(sizes)}"


class Call(NamedTuple):
    """A launch with its integer arguments, by name."""

    launch: Launch
    numbers: tuple[tuple[str, int], ...]


class Unaligned(MockTensor):  # type: ignore[misc]
    """A stand-in tensor with an unaligned address."""

    @staticmethod
    def data_ptr() -> int:
        """Return an address that is not a multiple of 16."""
        return 1


class StandIn:
    """A stand-in driver that reports a given chip, sufficient for compilation."""

    def __init__(self, chip: Chip) -> None:
        from triton.backends.compiler import GPUTarget

        self._name = chip.name
        self._target = GPUTarget(chip.backend, chip.arch, chip.warp)

    def get_current_target(self) -> Any:
        """Return the chip as Triton's target."""
        return self._target

    def get_current_device(self) -> str:
        """Return a device name that is unique per chip, because Triton caches kernels by device."""
        return self._name

    def get_current_stream(self, device: str) -> int:
        """Return the default stream."""
        return 0


@contextlib.contextmanager
def standing_in(chip: Chip) -> Iterator[None]:
    """Make `chip` Triton's current device inside the context."""
    before = driver._active
    driver.set_active(StandIn(chip))
    architecture_of.cache_clear()
    try:
        yield
    finally:
        driver._active = before
        architecture_of.cache_clear()


@contextlib.contextmanager
def written() -> Iterator[list[Call]]:
    """Record the kernels launched inside the context, in their order, instead of launching them."""
    calls: list[Call] = []

    def run(function: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        calls.append(call_of(function, args, kwargs))

    with mock.patch.object(JITFunction, "run", run):
        yield calls


def call_of(function: JITFunction[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Return the compilation inputs of a kernel call, with its integers."""
    named = dict(zip(function.arg_names, args, strict=False)) | kwargs
    arguments: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    params = {param.name: param for param in function.params}
    for name, value in named.items():
        param = params.get(name)
        if param is None or param.is_constexpr or value is None:
            constants[name] = value
        else:
            arguments[name] = _kind(value, param.do_not_specialize)
            if isinstance(value, int):
                numbers[name] = value
    place = f"{function.fn.__module__}:{function.fn.__name__}"
    launch = Launch(place, tuple(arguments.items()), tuple(constants.items()))
    return Call(launch, tuple(numbers.items()))


def compile_launch(launch: Launch) -> Any:
    """Compile a kernel for the current device through the call that launches it. Raises any exception of the compiler."""
    module, _, name = launch.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    arguments = {name: _stand_in(kind) for name, kind in launch.arguments}
    return function.warmup(grid=(1, 1, 1), **arguments, **dict(launch.constants))


def build_launcher(backend: str, kernel: Any) -> None:
    """Compile the function in C that launches a compiled kernel, unless it is cached. backend: `cuda` or `hip`.

    Triton before 3.7 has one for each signature, and compiles it when the kernel is loaded: a third of a second each.
    """
    module, launcher = LAUNCHERS[backend]
    driver_module = importlib.import_module(module)
    if hasattr(driver_module, "make_launcher"):
        getattr(driver_module, launcher)(kernel.src, kernel.metadata)


def kind_of_type(name: str) -> Any:
    """Return the argument kind of a Triton type such as `*bf16:16`, `i32:16`, `i32`, `fp32`; `:16` as in `types_of`."""
    kind, _, multiple = name.partition(":")
    if kind.startswith("*"):
        return Pointer(TYPES[kind[1:]], bool(multiple))
    if kind == "i32":
        return Number(ALIGNMENT if multiple else PLAIN)
    return 0.0


def _kind(value: Any, plain: bool) -> Any:
    """Return a Pointer, a Number, or a float unchanged: of floats only the type counts. plain: ignore a number's
    special values.
    """
    if isinstance(value, Tensor):
        offset = value.storage_offset() * value.element_size()
        return Pointer(value.dtype, offset % ALIGNMENT == 0)
    if isinstance(value, bool) or not isinstance(value, int):
        return type(value)(0)
    stands_for = PLAIN
    if not plain and value == 1:
        stands_for = 1
    elif not plain and value % ALIGNMENT == 0:
        stands_for = ALIGNMENT
    if not -LARGEST_I32 <= value <= LARGEST_I32:
        stands_for += LARGEST_I32 + 1
    return Number(stands_for)


def _stand_in(kind: Any) -> Any:
    """Return a stand-in argument of a kind."""
    if isinstance(kind, Pointer):
        return MockTensor(kind.dtype) if kind.is_aligned else Unaligned(kind.dtype)
    if isinstance(kind, Number):
        return kind.stands_for
    return kind
