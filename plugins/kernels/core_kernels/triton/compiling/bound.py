"""Launches of kernels that have been launched before, without the work by which Triton finds a compiled kernel.

Owns: the compiled kernel of each form of a launch. Never does: compile (the first launch of a form is Triton's own), or
change what a kernel gets. Called by: the provider and the attention backend (they bind their kernels when they are made).

The form of a launch is all that may decide which kernel is compiled: the device, the constants and options, and of each
argument what Triton specializes for. It is finer than Triton's own, so two forms may have the same kernel, but a form has one
kernel alone. A launch then costs 2 to 4 microseconds instead of 6 to 13 (20 to 47 arguments, without the driver's part).
"""

from __future__ import annotations

import importlib
from typing import Any, Final, NamedTuple

from torch import Tensor
from triton import knobs
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from core_kernels.triton.compiling.catalog import MODULES, function_of

MOST_FORMS: Final = 1024
"""Forms of one kernel that are kept; the sizes of models need few."""
MOST_NAMES: Final = 1 << 14
"""Objects that have names: constants of every layer."""
BACKEND: Final = "cuda"
"""Triton's backend for NVIDIA. For AMD's a kernel also depends on the sizes of its tensors' memory."""
PLAIN: Final = (int, bool, str, type(None))
"""Types of constants whose values are quickly compared; others have names."""
TRITONS_OWN: Final = JITFunction.run


class Compiled(NamedTuple):
    """The kernel of a form.

    kernel: Triton's object, which keeps the code on the device.
    rest: the constants after the arguments, in the kernel's order.
    """

    kernel: Any
    rest: tuple[Any, ...]


class IntegerForms(dict[int, int]):
    """What Triton specializes for of an integer: whether it is 1, a multiple of 16, and its type."""

    def __missing__(self, number: int) -> int:
        """Find the form of a number, and keep it."""
        if len(self) >= 1 << 16:
            self.clear()
        size = (not -(1 << 31) <= number < 1 << 31) + (number >= 1 << 63)
        form = self[number] = size << 2 | (number % 16 == 0) << 1 | (number == 1)
        return form


class Names:
    """Numbers for constants that take long to compare, such as the parameters of a layer. Equal ones have one number.

    by_identity: number of each known object, by its `id`; the objects are kept, so that no other one gets it.
    """

    def __init__(self) -> None:
        self.by_identity: dict[int, int] = {}
        self._by_value: dict[Any, int] = {}
        self._kept: list[Any] = []

    def __call__(self, constant: Any) -> int:
        """Name an object that is not known."""
        number = self._by_value.setdefault(constant, len(self._by_value))
        self.by_identity[id(constant)] = number
        self._kept.append(constant)
        return number


class BoundLaunch:
    """Replaces `run` of one kernel."""

    def __init__(self, function: JITFunction[Any]) -> None:
        self._function = function
        self._forms: dict[tuple[Any, ...], Compiled] = {}
        self._integers = IntegerForms()
        self._names = Names()
        self._enter = knobs.runtime.launch_enter_hook
        self._leave = knobs.runtime.launch_exit_hook

    def __call__(self, *args: Any, grid: Any, warmup: bool, **constants: Any) -> Any:
        """Launch the kernel: `JITFunction.run`."""
        # Compilation ahead records launches by replacing Triton's own `run`.
        if warmup or JITFunction.run is not TRITONS_OWN or self._is_watched():
            return JITFunction.run(self._function, *args, grid=grid, warmup=warmup, **constants)
        integers = self._integers
        name = self._names
        numbers = name.by_identity
        active = driver.active
        device = active.get_current_device()
        # A list is quicker to build than a generator is to exhaust.
        form = tuple(
            [device, *constants]
            + [
                value if type(value) in PLAIN else numbers[id(value)] if id(value) in numbers else name(value)
                for value in constants.values()
            ]
            + [
                integers[arg]
                if type(arg) is int
                else (arg.dtype, arg.data_ptr() & 15)
                if isinstance(arg, Tensor)
                else type(arg)
                for arg in args
            ]
        )
        found = self._forms.get(form)
        if found is None:
            return self._first(form, args, grid, constants)
        kernel = found.kernel
        first, second, third = (*grid, 1, 1)[:3]
        stream = active.get_current_stream(device)
        kernel.run(
            first, second, third, stream, kernel.function, kernel.packed_metadata, None, None, None, *args, *found.rest
        )
        return kernel

    def _is_watched(self) -> bool:
        """Whether a profiler's hooks want facts of each launch."""
        runtime = knobs.runtime
        if runtime.launch_enter_hook is not self._enter or runtime.launch_exit_hook is not self._leave:
            return True
        return bool(self._enter.calls or self._leave.calls)

    def _first(self, form: tuple[Any, ...], args: tuple[Any, ...], grid: Any, constants: dict[str, Any]) -> Any:
        """Launch a form through Triton, and keep its kernel if further launches need nothing else of Triton."""
        kernel = TRITONS_OWN(self._function, *args, grid=grid, warmup=False, **constants)
        params = self._function.params
        given, rest = params[: len(args)], params[len(args) :]
        names = [param.name for param in rest]
        is_plain = not any(param.is_constexpr for param in given) and all(param.is_constexpr for param in rest)
        is_plain = is_plain and isinstance(grid, tuple) and constants.keys() >= set(names)
        if kernel is not None and is_plain and driver.active.get_current_target().backend == BACKEND:
            if len(self._forms) >= MOST_FORMS or len(self._names.by_identity) >= MOST_NAMES:
                self._forms.clear()
                self._names = Names()
                return kernel
            self._forms[form] = Compiled(kernel, tuple(constants[name] for name in names))
        return kernel


def bind_kernels(package: str) -> None:
    """Bind all kernels of a package that are in the catalog."""
    for module in MODULES:
        if module.startswith(f"{package}."):
            for row in importlib.import_module(module).ROWS:
                _bind(function_of(row))


def _bind(function: Any) -> None:
    """Bind a kernel, once. An interpreted one is no `JITFunction`."""
    if isinstance(function, JITFunction) and not isinstance(function.run, BoundLaunch):
        function.run = BoundLaunch(function)
