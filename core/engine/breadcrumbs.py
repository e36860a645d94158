"""What an engine process is computing, told in shared memory, so that it can be read when the process is no more.

Owns: the layout of that memory, writing (`Breadcrumbs`) and reading it (`read`). Never does: judge what it means.
Called by: the engine process (writes before and after each step), its owner (reads after a death, and while it waits).

The numbers around the handles are odd while a step is being written, so a reader sees one step or none.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass

NBYTES = 1 << 20
"""Of the file; its pages take memory when they are written."""
READ_ATTEMPTS = 100

_EPOCH, _SEQUENCE, _STEP, _COMPUTING, _COUNT, _BEGIN, _END, _PREDICTED = range(8)
"""Words of eight bytes: integers but for the last three, which are floats."""
_HEADER = struct.Struct("=5q3d")
_HANDLES = _HEADER.size
MOST_HANDLES = (NBYTES - _HANDLES) // 8
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


class Breadcrumbs:
    """The writing end, for one thread at a time. descriptor: of a file of `NBYTES`; it may be closed afterwards.

    epoch: of the engine.
    """

    def __init__(self, descriptor: int, epoch: int) -> None:
        memory = memoryview(mmap.mmap(descriptor, NBYTES))
        self._bytes = memory
        self._integers = memory.cast("q")
        self._floats = memory.cast("d")
        self._integers[_EPOCH] = epoch

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


def _header(descriptor: int) -> tuple[int, int, int, int, int, float, float, float]:
    raw = os.pread(descriptor, _HEADER.size, 0)
    words: tuple[int, int, int, int, int, float, float, float] = _HEADER.unpack(raw)
    return words
