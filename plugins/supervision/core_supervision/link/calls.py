"""Utility calls without an answer yet.

Owns: their numbers and futures. Never does: send or receive. Called by: `ZmqClient`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from core.api.errors import EngineDeadError, UtilityError
from core.api.messages import Utility, UtilityResult


class OpenCalls:
    """The open calls of one client, used from one event loop."""

    def __init__(self) -> None:
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._num_calls = 0

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, method: str, arguments: Mapping[str, Any]) -> tuple[Utility, asyncio.Future[Any]]:
        """Return the message of a new call and the future of its result: a value, UtilityError or EngineDeadError.

        Awaiting the future is optional.
        """
        self._num_calls += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_note_error)
        self._open[self._num_calls] = answer
        return Utility(self._num_calls, method, dict(arguments)), answer

    def settle(self, result: UtilityResult) -> None:
        """Resolve the future of a call with its result; unknown and cancelled calls are ignored."""
        answer = self._open.pop(result.call_id, None)
        if answer is None or answer.done():
            return
        if result.ok:
            answer.set_result(result.value)
        else:
            answer.set_exception(UtilityError(str(result.value)))

    def fail(self, error: EngineDeadError) -> None:
        """Fail all open calls, because no answer will come."""
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(error)
        self._open.clear()


def _note_error(answer: asyncio.Future[Any]) -> None:
    """Retrieve the error of a result, so that asyncio does not report one that is not awaited."""
    if not answer.cancelled():
        answer.exception()
