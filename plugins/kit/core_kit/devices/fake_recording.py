"""Recordings of the fake device: kernels, events and copies of weights, replayed on the same memory.

Owns: what is recorded, and the rules that a real device has for it. Never does: run anything by itself.
Called by: the fake device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from core_kit.devices.graph_runtime import RecordedCall

Work = Callable[[], None]


class RecordedDevice(Protocol):
    """The parts of a fake device that a replay calls. trace, replayed: see `FakeCalls`."""

    trace: list[tuple[str, Any]] | None
    replayed: int

    def later(self, work: Work) -> None:
        """Queue work."""
        ...

    def mark(self) -> Any:
        """Return an event."""
        ...

    def fetch(self, target: Tensor, source: Tensor, after: Any) -> Any:
        """Queue a copy of weights."""
        ...

    def wait_aside(self, mark: Any) -> None:
        """Let later work wait for a copy."""
        ...


@dataclass(frozen=True, slots=True)
class RecordedMark:
    """An event of a recording, by its number in it."""

    number: int


class Recording:
    """Work that is recorded: kernels, events, and copies of weights, which must be awaited in the same recording.

    steps: each gets the events of the present replay by their numbers.
    """

    def __init__(self) -> None:
        self.steps: list[Callable[[RecordedDevice, dict[int, Any]], None]] = []
        self._num_marks = 0
        self._awaited = 0
        self._fetched = 0

    def call(self, call: RecordedCall) -> None:
        """Record a kernel."""
        self.steps.append(
            lambda device, _: device.later(work_of(call.function, call.arguments(), call.options, device, call.name))
        )

    def mark(self) -> RecordedMark:
        """Record an event."""
        mark = self._next()

        def step(device: RecordedDevice, marks: dict[int, Any]) -> None:
            marks[mark.number] = device.mark()

        self.steps.append(step)
        return mark

    def fetch(self, target: Tensor, source: Tensor, after: Any) -> RecordedMark:
        """Record a copy of weights. Raises RuntimeError for an event of another recording, as on a real device."""
        self._check(after)
        mark = self._next()
        self._fetched = mark.number

        def step(device: RecordedDevice, marks: dict[int, Any]) -> None:
            marks[mark.number] = device.fetch(target, source, marks[after.number])

        self.steps.append(step)
        return mark

    def wait(self, mark: Any) -> None:
        """Record that later kernels wait for a copy. Raises RuntimeError."""
        self._check(mark)
        self._awaited = max(self._awaited, mark.number)
        self.steps.append(lambda device, marks: device.wait_aside(marks[mark.number]))

    def end(self) -> None:
        """End the recording. Raises RuntimeError for copies that it does not await, or if it is empty."""
        if not self.steps:
            raise RuntimeError("nothing was recorded")
        if self._awaited < self._fetched:
            raise RuntimeError("the recording does not wait for all copies that begin in it")

    def _next(self) -> RecordedMark:
        self._num_marks += 1
        return RecordedMark(self._num_marks)

    def _check(self, mark: Any) -> None:
        if not isinstance(mark, RecordedMark) or mark.number > self._num_marks:
            raise RuntimeError("recorded work waits for work outside of its recording")


class FakeGraph:
    """The recorded calls of a fake device."""

    def __init__(self, device: RecordedDevice, recording: Recording) -> None:
        self._device = device
        self._recording = recording

    def replay(self) -> None:
        """Run the calls again. Raises MovedError if a tensor's memory is gone."""
        marks: dict[int, Any] = {}
        for step in self._recording.steps:
            step(self._device, marks)
        self._device.replayed += 1


def work_of(
    function: Callable[..., Any], args: list[Any], options: dict[str, Any], device: RecordedDevice, name: str
) -> Work:
    """Return a kernel's call as work of a device, which notes it as it runs."""

    def work() -> None:
        if device.trace is not None:
            device.trace.append((name, function))
        function(*args, **options)

    return work
