"""A device with memory of its own, to which copies are made late: only when kernels need them. It computes on the CPU.

Owns: the copies that are under way, and what they find wrong. Never does: compute anything by itself.
Called by: tests of whatever uploads a step's inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from core_kit.intercepted import InterceptedAttention, InterceptedRuntime
from core_runtime.contracts import BatchView, Runtime


class OverwrittenError(Exception):
    """The host wrote to memory from which a copy was under way."""


class LateCopies:
    """Copies in the order in which they were begun; kernels wait for all of them.

    made: copies that are done.
    waited: how often the host had to wait for one.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []
        self.made = 0
        self.waited = 0

    def begin(self, device: Tensor, host: Tensor) -> Callable[[], None]:
        """Copy `host` later; what is returned waits for it."""
        number = self.made + len(self._waiting)
        then = host.clone()
        self._waiting.append((device, host, then))
        return lambda: self._wait(number)

    def run(self, name: str, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        """A kernel: it begins when all copies are made. Raises OverwrittenError."""
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
    """The runtime `inner` (of a CPU) with `upload`. copies: what is under way, and counters."""

    def __init__(self, inner: Runtime) -> None:
        self.copies = LateCopies()
        super().__init__(inner, self.copies)

    def upload(self, device: Tensor, host: Tensor) -> Callable[[], None]:
        """Copy when the next kernel is called."""
        return self.copies.begin(device, host)


class FakeAsyncAttention(InterceptedAttention):
    """An attention backend on that device. kernels: of the `FakeAsyncDevice`."""

    def build(self, view: BatchView) -> Any:
        """See `AttentionBackend`: the first that looks at a step."""
        return self._calls.run("attention.build", self._inner.build, (view,), {})

    def write(self, handle: Any, k: Tensor, v: Tensor, metadata: Any) -> None:
        """See `AttentionBackend`."""
        args = (handle, k, v, metadata)
        self._calls.run("attention.write", self._inner.write, args, {})

    def forward(self, handle: Any, q: Tensor, metadata: Any, out: Tensor) -> None:
        """See `AttentionBackend`."""
        args = (handle, q, metadata, out)
        self._calls.run("attention.forward", self._inner.forward, args, {})
