"""Calls with a time limit, made in a thread of their own because they may never return.

Owns: that thread. Never does: kill it; a call that is stuck outside of Python stays stuck.
Called by: `core_runtime.executor.drafts.checked_proposer`.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable
from typing import Any

Answer = tuple[Any, BaseException | None]


class BackgroundCalls:
    """A thread that makes one call at a time. name: name of the thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[..., Any], *arguments: Any, limit_s: float) -> Any:
        """Return or raise the function's outcome. Raises TimeoutError after `limit_s` seconds; make no more calls then."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        answers: queue.SimpleQueue[Answer] = (
            queue.SimpleQueue()
        )  # one per call: an interrupted call may still answer later
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
        """End the thread after its current call."""
        self._calls.put(None)

    def _serve(self) -> None:
        for call in iter(self._calls.get, None):
            call()

    def _interrupt(self, thread: threading.Thread) -> None:
        """Interrupt a loop in Python, which would keep taking processor time from all other threads."""
        self.close()
        assert thread.ident is not None
        # The exception is raised at the thread's next bytecode; one that is blocked in C never sees it, hence
        # `daemon=True`.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Answer:
    try:
        return function(*arguments), None
    except BaseException as error:  # SystemExit too: the caller decides what each error means
        return None, error
