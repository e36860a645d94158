"""A fake device that runs its work late and in order, and detects callers that do not wait for it. It computes on the
CPU.

Owns: the queue of pending work, the recordings, and the errors they detect. Never does: compute by itself.
Called by: tests of the GPU runtime, which runs on it unchanged.

An upload is copied when the device reaches it, and its host memory is then poisoned. A download holds poison until the
host waits for it. A recording is valid only for the addresses it saw, and keeps no memory alive. A copy aside is made as
early as it may be where it waits for nothing, otherwise as late as somebody waits for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from core_kit.devices.async_device import OverwrittenError
from core_kit.devices.fake_recording import FakeGraph, Recording, Work, work_of
from core_kit.devices.fake_space import POISON
from core_kit.devices.graph_runtime import Place, RecordedCall
from core_kit.devices.intercepted import InterceptedKernels
from core_runtime.layers.kernels import KernelSet
from core_runtime.sampling.kernel import numpy_masked_race, numpy_race
from core_runtime.sampling.logprobs import numpy_logprobs

MIB: Final = 1 << 20

LOOKS: Final = frozenset(
    (
        *("__get__", "__getitem__", "__len__", "as_strided", "data_ptr", "detach", "dim", "element_size", "expand"),
        *("is_floating_point", "narrow", "numel", "numpy", "size", "split", "squeeze", "storage_offset", "stride"),
        *("transpose", "unbind", "unflatten", "unsqueeze", "untyped_storage", "view"),
    )
)
"""torch functions that inspect a tensor without reading its data."""

READS: Final = frozenset(("__bool__", "__float__", "__index__", "__int__", "cpu", "equal", "item", "nonzero", "tolist"))
"""Functions for which the host waits until the device has finished all work."""


class Watch(TorchFunctionMode):  # type: ignore[misc]
    """While entered, the host's own functions see the devices' work as done, and functions that read are counted."""

    def __init__(self, *devices: FakeCalls) -> None:
        super().__init__()
        self.devices = WeakSet(devices)

    @classmethod
    def in_this_thread(cls) -> Watch:
        """Return the instance entered in this thread; if there is none, enter one permanently."""
        for mode in _get_current_function_mode_stack():
            if isinstance(mode, Watch):
                return mode
        watch = cls()
        watch.__enter__()
        return watch

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the device's work first, unless the function only inspects."""
        devices = list(self.devices)
        if any(device.is_working for device in devices):
            return function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        looks = name in LOOKS
        if name == "__getitem__":
            looks = _is_view(args[1])
        elif name == "numpy":
            looks = any(device.is_pinned(args[0]) for device in devices)
        waits = name in READS or (name == "numpy" and not looks)
        for device in devices:
            if not looks:
                device.do_everything()
            device.reads[name] += waits
        return function(*args, **(kwargs or {}))


class FakeMark:
    """An event: a position in the order of the device's work."""

    def __init__(self, device: FakeCalls, number: int) -> None:
        self._device = device
        self.number = number

    def synchronize(self) -> None:
        """Wait for the event."""
        self._device.wait(self.number)


@dataclass(frozen=True, slots=True)
class FetchMark:
    """An event after one of the copies of weights."""

    number: int


class AsideMark:
    """An event after one of the copies aside."""

    def __init__(self, device: FakeCalls, number: int) -> None:
        self._device = device
        self.number = number

    def synchronize(self) -> None:
        """Wait for the event."""
        self._device.do_everything()
        self._device.copy_until(self.number)


class FakeCalls:
    """The `DeviceCalls` of the fake device, and the `Calls` of its kernels.

    graph_bytes: device memory per recording.
    is_watched: whether threads that use it are watched permanently; otherwise a test enters a `Watch`.

    fetches_early: whether weights are copied at once when the event that a copy waits for is reached, or only when kernels
        wait for the copy: the first reveals a missing event, the second a missing wait.
    trace: for each kernel its name and object, for each copy of weights `fetch` and both tensors, as they run; None: not kept.
    is_working: whether it is running its work at the moment.
    reads: functions for which the host had to wait, by name.
    waits: number of waits for an event.
    uploads: number of copies to the device.
    copies_aside: number of copies aside.
    fetches: number of copies of weights.
    cached: bytes that the allocator keeps, until `give_back` or a recording returns them to the driver.
    recorded, replayed: number of recordings and replays.
    threads: how often a thread made it current.
    """

    def __init__(self, graph_bytes: int = MIB, *, is_watched: bool = False) -> None:
        self.device = torch.device("cpu")
        self._graph_bytes = graph_bytes
        self._is_watched = is_watched
        self._queue: list[Work] = []
        self._num_done = 0
        self.is_working = False
        self._landed: list[tuple[int, Tensor, Tensor]] = []
        self._recording: Recording | None = None
        self.fetches_early = False
        self.trace: list[tuple[str, Any]] | None = None
        self.fetches = 0
        self._fetching: list[Work] = []
        self._num_fetched = 0
        self._pinned: dict[int, Tensor] = {}  # kept alive: a new tensor at a freed address would be mistaken for pinned
        self.free = 1 << 30
        self.cached = 0
        self.reads: Counter[str] = Counter()
        self.waits = 0
        self.uploads = 0
        self.copies_aside = 0
        self._aside: list[Work] = []
        self._num_aside_done = 0
        self.recorded = 0
        self.replayed = 0
        self.threads = 0

    def run(self, name: str, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> None:
        """Queue a kernel, or record it, or run it as part of the kernel that is being called."""
        if self.is_working:
            function(*args, **options)
        elif self._recording is not None:
            places = [Place(arg) if isinstance(arg, Tensor) else arg for arg in args]
            self._recording.call(RecordedCall(name, function, places, options))
        else:
            self.later(work_of(function, list(args), options, self, name))

    def later(self, work: Work) -> None:
        """Queue work."""
        self._queue.append(work)

    def do_everything(self) -> None:
        """Run all queued work; the host still does not know of it."""
        if self.is_working:
            return
        self.is_working = True
        try:
            with torch.inference_mode():
                self._work_off()
        finally:
            self.is_working = False

    def _work_off(self) -> None:
        while self._queue:
            work = self._queue.pop(0)
            work()
            self._num_done += 1

    def wait(self, number: int) -> None:
        """Wait until `number` pieces of work are done."""
        self.waits += 1
        self.do_everything()
        for landed, host, copied in self._landed:
            if landed <= number:
                host.copy_(copied)
        self._landed = [entry for entry in self._landed if entry[0] > number]

    def use(self) -> None:
        """Make this the calling thread's current device."""
        self.threads += 1
        if self._is_watched:
            Watch.in_this_thread().devices.add(self)

    def memory(self) -> tuple[int, int]:
        """Return (free, total) memory in bytes."""
        return self.free, 1 << 30

    def zeros(self, nbytes: int) -> Tensor:
        """Allocate zeroed uint8 [nbytes] on the device."""
        self.free -= nbytes
        return torch.zeros(nbytes, dtype=torch.uint8)

    def pinned(self, nbytes: int) -> Tensor:
        """Allocate pinned host memory uint8 [nbytes]."""
        memory = torch.full((nbytes,), POISON, dtype=torch.uint8)
        self._pinned[memory.untyped_storage().data_ptr()] = memory
        return memory

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether a tensor is in memory allocated by `pinned`."""
        return tensor.untyped_storage().data_ptr() in self._pinned

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Queue a copy. Raises OverwrittenError, late, when the source of an upload was overwritten too early."""
        if self.is_pinned(source):
            self.uploads += 1
            then = source.clone()
            self.later(lambda: _upload(target, source, then))
            return
        if not self.is_pinned(target):
            raise ValueError("a copy in the device's own time needs pinned memory of the host")
        target.fill_(POISON)
        number = self._num_done + len(self._queue) + 1
        self.later(lambda: self._landed.append((number, target, source.clone())))

    def mark(self) -> Any:
        """Return an event after all work submitted so far."""
        if self._recording is not None:
            return self._recording.mark()
        return FakeMark(self, self._num_done + len(self._queue))

    def copy_aside(self, target: Tensor, source: Tensor, after: FakeMark | None) -> AsideMark:
        """Queue a copy in an order of its own; see the module."""
        then: Tensor | None = None
        if self.is_pinned(source):
            then = source.clone()
        elif self.is_pinned(target):
            target.fill_(POISON)
        else:
            raise ValueError("a copy in the device's own time needs pinned memory of the host")
        self._aside.append(lambda: _copy_aside(target, source, then))
        self.copies_aside += 1
        if after is None:
            self.copy_until(self.copies_aside)
        return AsideMark(self, self.copies_aside)

    def wait_aside(self, mark: Any) -> None:
        """Let work submitted from now on wait for an event of `copy_aside` or `fetch`."""
        if self._recording is not None:
            self._recording.wait(mark)
        elif isinstance(mark, FetchMark):
            self.later(lambda: self._fetch_until(mark.number))
        else:
            self.later(lambda: self.copy_until(mark.number))

    def fetch(self, target: Tensor, source: Tensor, after: Any) -> Any:
        """Queue a copy of weights, whose source stays as it is; see `fetches_early`."""
        if not self.is_pinned(source):
            raise ValueError("a copy in the device's own time needs pinned memory of the host")
        if self._recording is not None:
            return self._recording.fetch(target, source, after)
        self.fetches += 1
        number = self.fetches

        def copy() -> None:
            if self.trace is not None:
                self.trace.append(("fetch", (target, source)))
            target.copy_(source)

        self._fetching.append(copy)
        if self.fetches_early:
            place = after.number - self._num_done
            if place <= 0:
                self._fetch_until(number)
            else:
                before = self._queue[place - 1]

                def both() -> None:
                    before()
                    self._fetch_until(number)

                self._queue[place - 1] = both
        return FetchMark(number)

    def in_place(self, host: Tensor) -> Tensor:
        """Return pinned memory, which this device reads as its own."""
        if not self.is_pinned(host):
            raise RuntimeError("the device reads pinned memory alone")
        return host

    def _fetch_until(self, number: int) -> None:
        """Make the first `number` copies of weights."""
        working = self.is_working
        self.is_working = True
        try:
            while self._num_fetched < number:
                self._num_fetched += 1
                self._fetching.pop(0)()
        finally:
            self.is_working = working

    def copy_until(self, number: int) -> None:
        """Make the first `number` copies aside."""
        working = self.is_working
        self.is_working = True
        try:
            while self._num_aside_done < number:
                self._num_aside_done += 1
                self._aside.pop(0)()
        finally:
            self.is_working = working

    def synchronize(self) -> None:
        """Wait until the device has finished all submitted work."""
        self.wait(self._num_done + len(self._queue))
        self.copy_until(self.copies_aside)

    def record(self, run: Callable[[], None]) -> FakeGraph:
        """Record the work that `run` submits. As in torch, cached memory is returned first."""
        self.give_back()
        recording = Recording()
        self._recording = recording
        try:
            run()
        finally:
            self._recording = None
        recording.end()
        self.recorded += 1
        self.free -= self._graph_bytes
        return FakeGraph(self, recording)

    def give_back(self) -> None:
        """Return cached memory to the driver."""
        self.free += self.cached
        self.cached = 0


class FakeKernels(InterceptedKernels):
    """The kernels of the fake device: a CPU's, plus the sampling kernels and the logprobs kernel."""

    def __init__(self, inner: KernelSet, calls: FakeCalls) -> None:
        super().__init__(inner, calls)
        race = inner.race or numpy_race
        logprobs = inner.logprobs or numpy_logprobs

        def draw(*args: Any, **options: Any) -> None:
            calls.run("race", race, args, options)

        def draw_masked(*args: Any, **options: Any) -> None:
            calls.run("masked_race", inner.masked_race or numpy_masked_race, args, options)

        def tell(*args: Any, **options: Any) -> None:
            calls.run("logprobs", logprobs, args, options)

        self.race = draw
        self.masked_race = draw_masked
        self.logprobs = tell


def _upload(target: Tensor, source: Tensor, then: Tensor) -> None:
    if not torch.equal(source, then):
        raise OverwrittenError("the host wrote to memory before its copy to the device was made")
    target.copy_(source)
    source.fill_(POISON)


def _copy_aside(target: Tensor, source: Tensor, then: Tensor | None) -> None:
    """Copy in either direction. then: the content of an upload's source when it was submitted."""
    if then is None:
        target.copy_(source)
    else:
        _upload(target, source, then)


def _is_view(index: Any) -> bool:
    """Whether indexing a tensor with `index` returns a view."""
    parts = index if isinstance(index, tuple) else (index,)
    return not any(isinstance(part, Tensor | np.ndarray | list) for part in parts)
