"""Wrappers of kernels and attention backends whose calls pass through an interceptor.

Owns: the wrappers for everything that a forward pass calls. Never does: decide what happens to a call.
Called by: the fake devices in this package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from core_runtime.contracts import HeadsKernel, LinearKernel, Runtime
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.reference import FEATURES
from core_runtime.specs.operation_order import OPERATIONS, SPECIAL_OPERATIONS

ROWS = {
    "rms_norm": (0, 3),
    "rms_norm_heads": (0,),
    "rotary": (0, 1),
    "layer_norm": (0, 4),
    "layer_norm_heads": (0,),
    "gated": (0, 2),
    "activate": (0, 2),
    "open_gate": (0, 1),
    "add": (0, 1),
    "add_rms_norm": (0, 2, 5),
    "take_rms_norm": (4,),
    "scale": (0,),
    "soft_cap": (0,),
    "take_rows": (2,),
    "route": (0, 3, 4),
    "race": (0,),
}
"""For each operation, the arguments with a row for each row of the step (or of its logits)."""


class Calls(Protocol):
    """The interceptor of calls."""

    def run(self, name: str, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Call `function(*args, **options)`, now or later as well. name: of the operation, for messages."""
        ...


class InterceptedLinear:
    """A wrapped prepared weight, or the wrapped experts of a layer."""

    capturable = True

    def __init__(self, inner: Any, calls: Calls) -> None:
        self._inner = inner
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        if name == "gated":  # the product followed by the activation has the same bits
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __call__(self, *args: Any, **options: Any) -> None:
        """Run the wrapped kernel through the interceptor."""
        self._calls.run("linear", self._inner, args, options)

    def weights(self) -> list[Tensor]:
        """Return the tensors of the wrapped weight."""
        held: list[Tensor] = self._inner.weights()
        return held

    def use_weights(self, tensors: Sequence[Tensor]) -> None:
        """Let the wrapped kernel read other tensors."""
        self._inner.use_weights(tensors)

    def rows(self, ids: Tensor, out: Tensor) -> None:
        """Gather rows through the interceptor."""
        self._calls.run("rows", self._inner.rows, (ids, out), {})


class InterceptedKernels(KernelSet):
    """A kernel set whose operations can all be recorded, because `calls` intercepts each of them."""

    def __init__(self, inner: KernelSet, calls: Calls) -> None:
        self._inner = inner
        self.calls = calls
        self.providers = inner.providers
        self.device = inner.device
        self.memory = inner.memory
        self.numerics = inner.numerics
        self.native = inner.native
        self.step_hooks = inner.step_hooks
        self.capturable = True
        for op in (*OPERATIONS, *SPECIAL_OPERATIONS):
            setattr(self, op, self._intercepted(op))
        self.add_rms_norm = None if inner.add_rms_norm is None else self._intercepted("add_rms_norm")
        self.take_rms_norm = None if inner.take_rms_norm is None else self._intercepted("take_rms_norm")
        self.race = None if inner.race is None else self._intercepted("race")
        self.masked_race = inner.masked_race  # never recorded: the rows with masks differ from step to step
        self.logprobs = inner.logprobs

    @property
    def recorded(self) -> frozenset[str]:
        """Return all operations as recordable."""
        return frozenset((*OPERATIONS, *SPECIAL_OPERATIONS, *FEATURES))

    def linear(self, *args: Any, **options: Any) -> LinearKernel:
        """Prepare a weight and wrap its kernel."""
        inner = self._inner.linear(*args, **options)
        kernel: Any = InterceptedLinear(inner, self.calls)
        return kernel  # type: ignore[no-any-return]

    def save(self, kernel: Any, *args: Any, **options: Any) -> Any:
        """Save a wrapped kernel through the inner set."""
        inner = kernel._inner if isinstance(kernel, InterceptedLinear) else kernel
        return self._inner.save(inner, *args, **options)

    def restore(self, *args: Any, **options: Any) -> LinearKernel:
        """Restore a kernel and wrap it."""
        inner = self._inner.restore(*args, **options)
        kernel: Any = InterceptedLinear(inner, self.calls)
        return kernel  # type: ignore[no-any-return]

    def heads(self, *args: Any, **options: Any) -> HeadsKernel:
        """Prepare a weight per head and wrap its kernel."""
        inner = self._inner.heads(*args, **options)
        kernel: Any = InterceptedLinear(inner, self.calls)
        return kernel  # type: ignore[no-any-return]

    def experts(self, *args: Any, **options: Any) -> Any:
        """Build the experts of a layer and wrap them."""
        inner = self._inner.experts(*args, **options)
        return InterceptedLinear(inner, self.calls)

    def _intercepted(self, op: str) -> Any:
        function = getattr(self._inner, op)

        def call(*args: Any, **options: Any) -> None:
            self.calls.run(op, function, args, options)

        return call


class InterceptedAttention:
    """A wrapped attention backend. inner: the one that computes. kernels: of the device, whose `calls` also intercept
    this backend.
    """

    def __init__(self, inner: Any, kernels: InterceptedKernels) -> None:
        self._inner = inner
        self._calls = kernels.calls
        self.name = inner.name
        self.numerics = inner.numerics
        self.kv_layout = inner.kv_layout
        self.bind = inner.bind


class InterceptedRuntime:
    """The CPU runtime `inner`, with all kernel calls passing through `calls`."""

    def __init__(self, inner: Runtime, calls: Calls) -> None:
        kernels = inner.kernels
        assert isinstance(kernels, KernelSet)
        self._inner = inner
        self.device = inner.device
        self.num_threads = inner.num_threads
        self.kernels = InterceptedKernels(kernels, calls)

    def activation_dtype(self, dtype: str) -> torch.dtype:
        """Return the inner runtime's activation dtype."""
        return self._inner.activation_dtype(dtype)

    def available_memory(self) -> int:
        """Return the inner runtime's available memory."""
        return self._inner.available_memory()

    def allocate(self, nbytes: int) -> Tensor:
        """Allocate from the inner runtime."""
        return self._inner.allocate(nbytes)

    def close(self) -> None:
        """Close the inner runtime."""
        self._inner.close()
