"""Calls of the file system that may hang, on a thread of their own.

Owns: `LimitedCalls`: one thread, the calls that wait for it, and how long a caller waits; `within`, a single call of that
kind. Never does: access a file by itself, or read pages (`page_reader` does). Called by: the disk tier, from the thread that
plans steps.

A call of a network file system whose server is gone does not return. The thread that plans steps must not wait for it, so it
waits for an answer for at most `LIMIT_S`, and not at all while an earlier call is late.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

logger = logging.getLogger(__name__)

LIMIT_S = 0.05
"""Longest wait for an answer. A local disk takes microseconds; a step of a large model takes as long as this."""


Made = TypeVar("Made")


def within(seconds: float, make: Callable[[], Made]) -> Made:
    """Return what `make` returns. Raises its errors, and TimeoutError when it takes longer; its thread is then abandoned."""
    future: Future[Made] = Future()

    def run() -> None:
        try:
            future.set_result(make())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="kv-open", daemon=True).start()
    if not wait([future], seconds).done:
        raise TimeoutError(errno.ETIMEDOUT, "it does not answer")
    return future.result()


class Call:
    """One call. answer: its result, once `is_done` is set; None when it raised."""

    def __init__(self, function: Callable[[], bool | None]) -> None:
        self.function = function
        self.answer: bool | None = None
        self.is_done = threading.Event()


class LimitedCalls:
    """Makes calls in order, one at a time. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[Call] = deque()
        self._late: Call | None = None
        self._late_since = 0.0
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def is_late(self) -> bool:
        """Whether a caller has given up waiting for a call that still has no answer."""
        return self._late is not None and not self._late.is_done.is_set()

    @property
    def late_s(self) -> float:
        """Return the seconds since a call became late; 0 when none is late."""
        return self._clock() - self._late_since if self.is_late else 0.0

    def ask(self, function: Callable[[], bool], late: bool) -> bool:
        """Return the answer of a call, or `late` when there is none in time."""
        if self.is_late:
            return late
        answer = self._submit(function)
        return late if answer is None else answer

    def do(self, function: Callable[[], None]) -> None:
        """Have a call made, at the latest when the calls before it have returned."""
        self._submit(function)

    def close(self) -> None:
        """End the thread after the calls that wait; one that hangs is abandoned."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _submit(self, function: Callable[[], bool | None]) -> bool | None:
        """Queue a call and wait for its answer; None when it is late, or has none."""
        if self._closing:
            return None
        call = Call(function)
        was_late = self.is_late
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kv-files", daemon=True)
                self._thread.start()
            self._queue.append(call)
            self._changed.notify()
        # Twice half the limit: after a stop of the whole process the first wait ends before the thread could run.
        if not was_late and not (call.is_done.wait(LIMIT_S / 2) or call.is_done.wait(LIMIT_S / 2)):
            self._late = call
            self._late_since = self._clock()
        return call.answer

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call.answer = call.function()
            except Exception as error:  # a defect costs this answer, not those to come
                logger.error("A call of the KV cache's files failed.", exc_info=error)
            call.is_done.set()

    def _next(self) -> Call | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            return self._queue.popleft() if self._queue else None
