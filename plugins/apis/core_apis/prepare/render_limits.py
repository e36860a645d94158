"""Limits of rendering, for a process that does nothing else meanwhile and may be ended.

Owns: the timers and the limit of address space around each rendering. Never does: render. Called by:
`core_apis.prepare.process`, in its main thread.

Two timers run, both of CPU time, so a busy machine makes no difference. The first one raises an exception, which stops
Python code. A single operation of the interpreter, such as a division of huge numbers, does not notice it. For that
case the second timer ends the process a little later, by a signal that tells the server why.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from core_tokens.chat.template_limits import Allowance, WorkSpent

GRACE_SECONDS = 0.2
"""Seconds from the exception to the end of the process."""
REPEAT_SECONDS = 0.05
"""Seconds between repeated exceptions, until the rendering has ended: destructors swallow exceptions raised in them."""
END_SIGNAL = signal.SIGVTALRM
"""The signal that ends a process that works on one operation for too long."""


class RenderLimits:
    """The limits of one process.

    is_exhausted: a rendering has hit the memory limit, so the process should be replaced.
    """

    def __init__(self) -> None:
        self.is_exhausted = False
        self._is_holding = False
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._page = resource.getpagesize()
        signal.signal(signal.SIGPROF, self._stop)
        signal.signal(END_SIGNAL, signal.SIG_DFL)

    @contextmanager
    def held(self, allowance: Allowance) -> Iterator[None]:
        """Limit the rendering within the context; see `core_tokens.chat.template_limits.Limits`."""
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
        """Return the current size of the address space in bytes."""
        return int(os.pread(self._statm, 64, 0).split()[0]) * self._page

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._is_holding:
            raise WorkSpent
