"""What an engine process is doing, noted in shared memory, so that it can be read when the process is no more.

Owns: the layout of that memory, writing (`Breadcrumbs`) and reading it (`read`, `read_utility`). Never does: judge it.
Called by: the engine process (writes around each step and each utility), its owner (reads after a death, and while it waits).

The numbers around the handles are odd while a step is being written, so a reader sees one step or none.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from core_supervision.link.shared_file import STEPS_NBYTES

READ_ATTEMPTS = 100

_EPOCH, _SEQUENCE, _STEP, _COMPUTING, _COUNT, _BEGIN, _END, _PREDICTED = range(8)
"""Words of eight bytes: integers but for the last three, which are floats. What was learned lies behind them."""
_HEADER = struct.Struct("=5q3d")
NUM_LEARNED = 8
"""Floats that the next engine may know of this one."""
_LEARNED = _HEADER.size // 8
_UTILITIES = _HEADER.size // 8 + NUM_LEARNED
"""Two words for utilities: how often one was begun or ended, odd within one; and when that was. Then the name."""
UTILITY_NAME_NBYTES = 32
_UTILITY = struct.Struct(f"=qd{UTILITY_NAME_NBYTES}s")
_HANDLES = _UTILITIES * 8 + _UTILITY.size
MOST_HANDLES = (STEPS_NBYTES - _HANDLES) // 8
"""Sequences of one step that are named; further ones are not."""


@dataclass(frozen=True, slots=True)
class LastStep:
    """The last step that an engine began.

    epoch:       of the engine.
    number:      1, 2, 3, ... in the order in which steps were begun.
    begin_s:     `time.monotonic()` at its beginning.
    end_s:       the same when a step last ended; 0.0 before the first one did.
    predicted_s: seconds that it should take; infinite when nothing is known.
    computing:   whether it, or one before it, had not ended.
    handles:     the sequences that it computed, with those of steps before it that had not ended when it began.
    """

    epoch: int
    number: int
    begin_s: float
    end_s: float
    predicted_s: float
    computing: bool
    handles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InUtility:
    """A utility that an engine is in, between two steps.

    number:  grows with each utility.
    name:    as clients call it.
    begin_s: `time.monotonic()` at its beginning.
    """

    number: int
    name: str
    begin_s: float


class Breadcrumbs:
    """The writing end, for one thread at a time. It forgets the steps of an engine before, but not what that one learned.

    descriptor: of a file of `STEPS_NBYTES`; it may be closed afterwards.
    epoch: of the engine.
    """

    def __init__(self, descriptor: int, epoch: int) -> None:
        memory = memoryview(mmap.mmap(descriptor, STEPS_NBYTES))
        self._bytes = memory
        self._integers = memory.cast("q")
        self._floats = memory.cast("d")
        self._integers[_EPOCH] = epoch
        for word in (_SEQUENCE, _STEP, _COMPUTING, _COUNT, _END, _UTILITIES):
            self._integers[word] = 0

    @property
    def learned(self) -> Sequence[float]:
        """Floats that this engine, or one before it, has left; zeros where none has."""
        return self._floats[_LEARNED : _LEARNED + NUM_LEARNED].tolist()

    def learn(self, values: tuple[float, ...]) -> None:
        """Leave at most `NUM_LEARNED` floats for the next engine."""
        for place, value in enumerate(values, start=_LEARNED):
            self._floats[place] = value

    def begin_step(self, begin_s: float, predicted_s: float, handles: bytes | None) -> None:
        """A step begins. begin_s: `time.monotonic()`.

        handles: of its sequences, int64 in the machine's byte order; None: those of the step before.
        """
        integers = self._integers
        integers[_SEQUENCE] += 1
        integers[_STEP] += 1
        integers[_COMPUTING] = 1
        self._floats[_BEGIN] = begin_s
        self._floats[_PREDICTED] = predicted_s
        if handles is not None:
            self._set_handles(handles)
        integers[_SEQUENCE] += 1

    def end_step(self, end_s: float, num_under_way: int = 0) -> None:
        """The oldest step has ended, well or not. end_s: `time.monotonic()`. num_under_way: steps that have not."""
        self._floats[_END] = end_s
        self._integers[_COMPUTING] = num_under_way

    def begin_utility(self, name: str, begin_s: float) -> None:
        """A utility begins. begin_s: `time.monotonic()`."""
        raw = name.encode(errors="replace")[:UTILITY_NAME_NBYTES].ljust(UTILITY_NAME_NBYTES, b"\0")
        start = _UTILITIES * 8 + 16
        self._bytes[start : start + UTILITY_NAME_NBYTES] = raw
        self._floats[_UTILITIES + 1] = begin_s
        self._integers[_UTILITIES] += 1

    def end_utility(self) -> None:
        """The utility has ended, well or not."""
        self._integers[_UTILITIES] += 1

    def _set_handles(self, handles: bytes) -> None:
        named = handles[: MOST_HANDLES * 8]
        self._integers[_COUNT] = len(named) // 8
        self._bytes[_HANDLES : _HANDLES + len(named)] = named


def read(descriptor: int) -> LastStep | None:
    """The last step that was begun; None when none was, or when the process ended while it wrote of one."""
    for _ in range(READ_ATTEMPTS):
        header = _header(descriptor)
        epoch, sequence, number, computing, count, begin, end, predicted = header
        if sequence % 2:
            continue
        if not number:
            return None
        raw = os.pread(descriptor, count * 8, _HANDLES)
        if _header(descriptor)[_SEQUENCE] == sequence:
            handles = tuple(memoryview(raw).cast("q"))
            return LastStep(epoch, number, begin, end, predicted, bool(computing), handles)
    return None


def read_utility(descriptor: int) -> InUtility | None:
    """The utility that the engine is in; None: it is in none."""
    number, begin_s, raw = _UTILITY.unpack(os.pread(descriptor, _UTILITY.size, _UTILITIES * 8))
    if number % 2 == 0:
        return None
    return InUtility(number, raw.rstrip(b"\0").decode(errors="replace"), begin_s)


def _header(descriptor: int) -> tuple[int, int, int, int, int, float, float, float]:
    raw = os.pread(descriptor, _HEADER.size, 0)
    words: tuple[int, int, int, int, int, float, float, float] = _HEADER.unpack(raw)
    return words
