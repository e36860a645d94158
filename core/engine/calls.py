"""Utility calls that wait for an engine's answer.

Owns: their numbers and futures. Never does: send or receive. Called by: `ZmqClient`.
"""

from __future__ import annotations

import asyncio

from core.api.errors import EngineDeadError
from core.api.messages import Utility, UtilityResult


class OpenCalls:
    """Calls without an answer. Use it from one event loop."""

    def __init__(self) -> None:
        self._open: dict[int, asyncio.Future[str]] = {}
        self._num_calls = 0

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, method: str) -> tuple[Utility, asyncio.Future[str]]:
        """The message of a new call and where its answer will be: a value, or EngineDeadError. Nobody need wait for it."""
        self._num_calls += 1
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # an error that nobody reads is no news
        self._open[self._num_calls] = answer
        return Utility(self._num_calls, method), answer

    def settle(self, result: UtilityResult) -> None:
        """Hand an answer over."""
        answer = self._open.pop(result.call_id, None)
        if answer is None or answer.done():
            return
        if result.ok:
            answer.set_result(result.value)
        else:
            answer.set_exception(EngineDeadError(f"The engine's utility failed: {result.value}"))

    def fail(self, error: EngineDeadError) -> None:
        """No answer will come any more."""
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(error)
        self._open.clear()
