"""A fake device with separate memory whose copies run late: only when kernels need them. It computes on the CPU.

Owns: the pending copies, and the errors they detect. Never does: compute anything by itself.
Called by: tests of code that uploads a step's inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from core_kit.devices.intercepted import InterceptedAttention, InterceptedRuntime
from core_runtime.contracts import BatchView, Runtime


class OverwrittenError(Exception):
    """Raised when the host wrote to memory with a pending copy."""


class LateCopies:
    """Pending copies in order of submission; kernels wait for all of them.

    made: finished copies.
    waited: how often the host had to wait for one.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []
        self.made = 0
        self.waited = 0

    def begin(self, device: Tensor, host: Tensor) -> Callable[[], None]:
        """Queue a copy of `host`; the returned function waits for it."""
        number = self.made + len(self._waiting)
        then = host.clone()
        self._waiting.append((device, host, then))
        return lambda: self._wait(number)

    def run(self, name: str, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Run a kernel after all copies are made. Raises OverwrittenError."""
        self.finish()
        return function(*args, **options)

    def finish(self) -> None:
        """Make all copies. Raises OverwrittenError."""
        while self._waiting:
            self._copy()

    def _wait(self, number: int) -> None:
        if number >= self.made:
            self.waited += 1
        while number >= self.made:
            self._copy()

    def _copy(self) -> None:
        device, host, then = self._waiting.pop(0)
        self.made += 1
        if not torch.equal(host, then):
            raise OverwrittenError("the host wrote to memory before its copy to the device was made")
        device.copy_(host)


class FakeAsyncDevice(InterceptedRuntime):
    """The CPU runtime `inner` with an `upload`. copies: the pending copies, with counters."""

    def __init__(self, inner: Runtime) -> None:
        self.copies = LateCopies()
        super().__init__(inner, self.copies)

    def upload(self, device: Tensor, host: Tensor) -> Callable[[], None]:
        """Copy when the next kernel is called."""
        return self.copies.begin(device, host)


class FakeAsyncAttention(InterceptedAttention):
    """An attention backend on that device. kernels: of the `FakeAsyncDevice`."""

    def build(self, view: BatchView) -> Any:
        """Build the metadata, as the first call that reads a step's tensors."""
        return self._calls.run("attention.build", self._inner.build, (view,), {})

    def write(self, handle: Any, k: Tensor, v: Tensor, metadata: Any) -> None:
        """Store keys and values, as a kernel of the device."""
        args = (handle, k, v, metadata)
        self._calls.run("attention.write", self._inner.write, args, {})

    def forward(self, handle: Any, q: Tensor, metadata: Any, out: Tensor) -> None:
        """Attend, as a kernel of the device."""
        args = (handle, q, metadata, out)
        self._calls.run("attention.forward", self._inner.forward, args, {})
