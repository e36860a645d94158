"""A time limit for calls into plugins, so that one that hangs is a sentence and not a silent start.

Owns: the interruption of a call in its thread. Never does: end a thread or a process; code that never returns to the
interpreter cannot be interrupted (platforms are probed in helper processes for that reason).
Called by: manifests, which share the `Deadlines` of their registry.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

IDLE_SECONDS = 1.0
"""After so long without a limit to watch, the watching thread ends."""


class DeadlineExceeded(BaseException):
    """A call took too long. Not an Exception, so that no plugin swallows it by accident."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(f"no answer within {seconds:g} s")


class Deadlines:
    """Time limits of any number of calls, in any thread.

    In the main thread a signal interrupts, at the cost of some microseconds a call. For all other threads together one
    thread watches; it starts with the first limit.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._limits: set[_Limit] = set()
        self._wakes = 0.0  # when the watching thread looks again, on the monotonic clock; 0: there is none

    @contextlib.contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Raise DeadlineExceeded inside the block after `seconds`. A timer that is already running goes on afterwards."""
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
            with _alarm(seconds):
                yield
        else:
            with self._watched(seconds):
                yield

    @contextlib.contextmanager
    def _watched(self, seconds: float) -> Iterator[None]:
        limit = _Limit(time.monotonic() + seconds, threading.get_ident())
        with self._changed:
            self._limits.add(limit)
            if not self._wakes:
                self._wakes = limit.end
                threading.Thread(target=self._watch, name="plugin deadlines", daemon=True).start()
            elif limit.end < self._wakes:
                self._changed.notify()
        try:
            yield
        except DeadlineExceeded:
            if limit in self._limits:
                raise  # another limit, outside of this one or within it
            raise DeadlineExceeded(seconds) from None
        finally:
            with self._changed:
                self._limits.discard(limit)

    def _watch(self) -> None:
        """Interrupt whoever is late; end when there has been nothing to watch for a while."""
        now = busy = time.monotonic()
        with self._changed:
            while self._limits or now - busy < IDLE_SECONDS:
                for limit in [limit for limit in self._limits if limit.end <= now]:
                    self._limits.discard(limit)
                    _interrupt(limit.thread)
                busy = now if self._limits else busy
                self._wakes = min([now + IDLE_SECONDS, *(limit.end for limit in self._limits)])
                self._changed.wait(self._wakes - now)
                now = time.monotonic()
            self._wakes = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Limit:
    """One call. end: on the monotonic clock. thread: its identifier."""

    end: float
    thread: int


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """In the main thread: a signal also ends a sleep or a read."""

    def expire(number: int, frame: FrameType | None) -> None:
        raise DeadlineExceeded(seconds)

    begin = time.monotonic()
    handler = signal.signal(signal.SIGALRM, expire)
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if remaining:
            left = remaining - (time.monotonic() - begin)
            signal.setitimer(signal.ITIMER_REAL, max(left, 0.001), interval)


def _interrupt(thread: int) -> None:
    """Set an exception in a thread, raised when it reaches the interpreter again."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(DeadlineExceeded))
