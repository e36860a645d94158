"""Records of an engine process's steps and utilities in shared memory, which can be read after its death.

Owns: the layout of that memory, writing (`Breadcrumbs`) and reading it (`read` and others). Never does: interpret it. Called
by: the engine process (writes around each step and each utility, and on SIGTERM), its owner (reads after a death, and while it
waits).

The sequence number is odd while a step is being written, so a reader gets one complete step or none.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from core_supervision.link.shared_file import STEPS_NBYTES

READ_ATTEMPTS = 100

_EPOCH, _SEQUENCE, _STEP, _COMPUTING, _COUNT, _BEGIN, _END, _PREDICTED = range(8)
"""Indices of words of eight bytes: integers except the last three, which are floats. The learned values follow them."""
_HEADER = struct.Struct("=5q3d")
NUM_LEARNED = 8
"""Number of floats that an engine can leave for the next one."""
_LEARNED = _HEADER.size // 8
_UTILITIES = _HEADER.size // 8 + NUM_LEARNED
"""Index of three words for utilities: the number of begins and ends, odd within one, the time, and whether steps wait for the
utility; the name follows."""
UTILITY_NAME_NBYTES = 32
_UTILITY = struct.Struct(f"=qdq{UTILITY_NAME_NBYTES}s")
_END_REQUESTS = _UTILITIES + _UTILITY.size // 8
"""Index of the number of times that somebody has asked the process to end."""
_HANDLES = (_END_REQUESTS + 1) * 8
MOST_HANDLES = (STEPS_NBYTES - _HANDLES) // 8
"""Maximum number of sequences recorded for one step; further ones are left out."""


@dataclass(frozen=True, slots=True)
class LastStep:
    """The last step that an engine began.

    epoch:       epoch of the engine.
    number:      1, 2, 3, ... in the order in which steps were begun.
    begin_s:     `time.monotonic()` at its beginning.
    end_s:       `time.monotonic()` at the end of the last step that ended; 0.0 before.
    predicted_s: predicted duration in seconds; infinite without a prediction.
    computing:   whether it, or an earlier step, had not ended.
    handles:     handles of its sequences, and of those in earlier steps that had not ended when it began.
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
    """A utility that an engine is executing between two steps.

    number:      grows with each utility.
    name:        name by which clients call it.
    begin_s:     `time.monotonic()` at its beginning.
    holds_steps: whether steps that were in flight at its beginning can end only after it.
    """

    number: int
    name: str
    begin_s: float
    holds_steps: bool = False


class Breadcrumbs:
    """The writer, owned by the engine process, for one thread at a time.

    It clears the steps of an earlier engine, but not the values that it learned.

    descriptor: descriptor of a file of `STEPS_NBYTES`; it may be closed afterwards.
    epoch: epoch of the engine.
    """

    def __init__(self, descriptor: int, epoch: int) -> None:
        memory = memoryview(mmap.mmap(descriptor, STEPS_NBYTES))
        self._bytes = memory
        self._integers = memory.cast("q")
        self._floats = memory.cast("d")
        self._integers[_EPOCH] = epoch
        for word in (_SEQUENCE, _STEP, _COMPUTING, _COUNT, _END, _UTILITIES, _END_REQUESTS):
            self._integers[word] = 0

    @property
    def learned(self) -> Sequence[float]:
        """Values that this engine, or an earlier one, has stored with `learn`; zeros when none has."""
        return self._floats[_LEARNED : _LEARNED + NUM_LEARNED].tolist()

    def learn(self, values: tuple[float, ...]) -> None:
        """Store at most `NUM_LEARNED` floats for the next engine."""
        for place, value in enumerate(values, start=_LEARNED):
            self._floats[place] = value

    def begin_step(self, begin_s: float, predicted_s: float, handles: bytes | None) -> None:
        """Record the beginning of a step. begin_s: `time.monotonic()`.

        handles: handles of its sequences, int64 in native byte order; None: the same as in the previous step.
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
        """Record the end of the oldest step, successful or not. end_s: `time.monotonic()`. num_under_way: steps in flight."""
        self._floats[_END] = end_s
        self._integers[_COMPUTING] = num_under_way

    def begin_utility(self, name: str, begin_s: float, *, holds_steps: bool = False) -> None:
        """Record the beginning of a utility; the arguments are the fields of `InUtility`."""
        raw = name.encode(errors="replace")[:UTILITY_NAME_NBYTES].ljust(UTILITY_NAME_NBYTES, b"\0")
        start = _UTILITIES * 8 + 24
        self._bytes[start : start + UTILITY_NAME_NBYTES] = raw
        # All else before the number, which tells the reader that it is valid.
        self._floats[_UTILITIES + 1] = begin_s
        self._integers[_UTILITIES + 2] = holds_steps
        self._integers[_UTILITIES] += 1

    def end_utility(self) -> None:
        """Record the end of the utility, successful or not."""
        self._integers[_UTILITIES] += 1

    def ask_to_end(self) -> None:
        """Record that somebody other than the owner has asked the process to end."""
        self._integers[_END_REQUESTS] += 1

    def _set_handles(self, handles: bytes) -> None:
        named = handles[: MOST_HANDLES * 8]
        self._integers[_COUNT] = len(named) // 8
        self._bytes[_HANDLES : _HANDLES + len(named)] = named


def read(descriptor: int) -> LastStep | None:
    """Return the last step that began; None when there was none, or when the process died while it recorded one."""
    for _ in range(READ_ATTEMPTS):
        header = _header(descriptor)
        epoch, sequence, number, computing, count, begin, end, predicted = header
        if sequence % 2:
            continue
        if not number:
            return None
        raw = os.pread(descriptor, count * 8, _HANDLES)
        # Unchanged, so that the handles read in between belong to this header.
        if _header(descriptor)[_SEQUENCE] == sequence:
            handles = tuple(memoryview(raw).cast("q"))
            return LastStep(epoch, number, begin, end, predicted, bool(computing), handles)
    return None


def read_utility(descriptor: int) -> InUtility | None:
    """Return the utility that the engine is executing, or None."""
    number, begin_s, holds_steps, raw = _UTILITY.unpack(os.pread(descriptor, _UTILITY.size, _UTILITIES * 8))
    if number % 2 == 0:
        return None
    return InUtility(number, raw.rstrip(b"\0").decode(errors="replace"), begin_s, bool(holds_steps))


def read_end_requests(descriptor: int) -> int:
    """Return how often somebody other than the owner has asked this engine to end."""
    return int.from_bytes(os.pread(descriptor, 8, _END_REQUESTS * 8), sys.byteorder)


def _header(descriptor: int) -> tuple[int, int, int, int, int, float, float, float]:
    raw = os.pread(descriptor, _HEADER.size, 0)
    words: tuple[int, int, int, int, int, float, float, float] = _HEADER.unpack(raw)
    return words
