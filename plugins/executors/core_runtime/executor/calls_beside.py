"""Calls that may never come back, made in a thread of their own and waited for only so long.

Owns: that thread. Never does: end it by force; what is stuck outside of Python stays where it is.
Called by: `core_runtime.executor.checked_proposer`.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable
from typing import Any

Answer = tuple[Any, BaseException | None]


class CallsBeside:
    """Makes one call after the other. name: of the thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[..., Any], *arguments: Any, limit_s: float) -> Any:
        """What the function answers, or raises. Raises TimeoutError after `limit_s` seconds; then call nothing more."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()  # its own: an interrupted call may answer later
        self._calls.put(lambda: answers.put(_answer(function, arguments)))
        try:
            answer, error = answers.get(timeout=limit_s)
        except queue.Empty:
            self._interrupt(self._thread)
            raise TimeoutError(f"no answer within {limit_s:g} s") from None
        if error is not None:
            raise error
        return answer

    def close(self) -> None:
        """Make no more calls."""
        self._calls.put(None)

    def _serve(self) -> None:
        for call in iter(self._calls.get, None):
            call()

    def _interrupt(self, thread: threading.Thread) -> None:
        """End a loop in Python, which would go on taking time from everybody else."""
        self.close()
        assert thread.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Answer:
    try:
        return function(*arguments), None
    except BaseException as error:  # the caller judges, whatever it is
        return None, error
