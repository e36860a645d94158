"""A time limit for calls into plugins, so that one that hangs is a sentence and not a silent start.

Owns: the interruption of a call in this thread. Never does: end a thread or a process; code that never returns to the
interpreter cannot be interrupted (platforms are probed in helper processes for that reason). Called by: manifest.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType


class DeadlineExceeded(BaseException):
    """A call took too long. Not an Exception, so that no plugin swallows it by accident."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(f"no answer within {seconds:g} s")


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise DeadlineExceeded inside the block after `seconds`. A timer that is already running goes on afterwards."""
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        with _alarm(seconds):
            yield
    else:
        with _interruption(seconds):
            yield


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


@contextlib.contextmanager
def _interruption(seconds: float) -> Iterator[None]:
    """In other threads: an exception is set, and raised when the interpreter is reached again."""
    ident = threading.get_ident()
    lock = threading.Lock()
    over = False

    def expire() -> None:
        with lock:
            if not over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(DeadlineExceeded))

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    except DeadlineExceeded:
        raise DeadlineExceeded(seconds) from None
    finally:
        with lock:
            over = True
        timer.cancel()
