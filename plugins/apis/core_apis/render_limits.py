"""Limits of rendering in a process that does nothing else meanwhile, and may be ended.

Owns: the timers and the limit of address space around each rendering. Never does: render.
Called by: `core_apis.preparation_process`, in its main thread.

Two timers run, both of processor time, so a busy machine does not make a difference. The first one raises an exception, which
stops Python code. One operation of the interpreter, such as a division of huge numbers, does not hear of that: a little
later the second one ends the process, by a signal that tells the server why.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from core_tokens.template_limits import Allowance, WorkSpent

GRACE_SECONDS = 0.2
"""From the exception to the end of the process."""
REPEAT_SECONDS = 0.05
"""The exception is raised again and again until the rendering has ended: destructors swallow what is raised in them."""
END_SIGNAL = signal.SIGVTALRM
"""The signal by which a process ends that works on one operation for too long."""


class RenderLimits:
    """One for each process. is_exhausted: a rendering has met the limit of memory, so the process should be replaced."""

    def __init__(self) -> None:
        self.is_exhausted = False
        self._is_holding = False
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._page = resource.getpagesize()
        signal.signal(signal.SIGPROF, self._stop)
        signal.signal(END_SIGNAL, signal.SIG_DFL)

    @contextmanager
    def held(self, allowance: Allowance) -> Iterator[None]:
        """See `core_tokens.template_limits.Limits`."""
        try:
            if self._is_holding:
                yield
            else:
                with self._armed(allowance):
                    yield
        except MemoryError:
            self.is_exhausted = True
            raise

    @contextmanager
    def _armed(self, allowance: Allowance) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (self._size() + allowance.num_bytes, before[1]))
        signal.setitimer(signal.ITIMER_VIRTUAL, allowance.seconds + GRACE_SECONDS)
        try:
            self._is_holding = True
            signal.setitimer(signal.ITIMER_PROF, allowance.seconds, REPEAT_SECONDS)
            yield
        finally:
            self._is_holding = False
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            resource.setrlimit(resource.RLIMIT_AS, before)

    def _size(self) -> int:
        """Bytes of address space now."""
        return int(os.pread(self._statm, 64, 0).split()[0]) * self._page

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._is_holding:
            raise WorkSpent
