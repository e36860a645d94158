"""How many requests may wait, and when to come back.

Owns: `QueueLimit`. Never does: queue (the scheduler does) or answer (the server does). Called by: `AsyncEngine`.

A request waits until its first output. The limit is checked where requests arrive, so a refused one costs nothing.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from core.api.errors import RequestError

RECENT = 32
LONGEST_WAIT_S = 60


class QueueLimit:
    """max_requests, max_tokens: requests that wait, and their prompt tokens; 0 is no limit. clock: seconds."""

    def __init__(self, max_requests: int, max_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self._clock = clock
        self._waiting: dict[str, int] = {}
        self._num_tokens = 0
        self._left: deque[float] = deque(maxlen=RECENT)

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, request_id: str, num_tokens: int) -> None:
        """A request with so many prompt tokens begins to wait. Raises RequestError (429) when there is no room.

        One request always may wait, however long it is.
        """
        waiting = len(self._waiting)
        if self.max_requests and waiting >= self.max_requests:
            self._refuse(f"{waiting} requests wait already; at most {self.max_requests} may (--max-num-queued-reqs).")
        if self.max_tokens and waiting and self._num_tokens + num_tokens > self.max_tokens:
            self._refuse(
                f"{self._num_tokens} prompt tokens wait already, and this request has {num_tokens}; at most "
                f"{self.max_tokens} may wait (--max-num-queued-tokens)."
            )
        self._waiting[request_id] = num_tokens
        self._num_tokens += num_tokens

    def leave(self, request_id: str) -> None:
        """A request waits no more: it has its first output, or it has ended. Others are ignored."""
        num_tokens = self._waiting.pop(request_id, None)
        if num_tokens is not None:
            self._num_tokens -= num_tokens
            self._left.append(self._clock())

    def _refuse(self, why: str) -> None:
        seconds = self._seconds_per_request() * max(1, len(self._waiting) // 2)
        retry_after = min(LONGEST_WAIT_S, max(1, math.ceil(seconds)))
        raise RequestError(
            f"The server is busy: {why} Try again in {retry_after} s.",
            status=429,
            code="queue_full",
            retry_after=retry_after,
        )

    def _seconds_per_request(self) -> float:
        """How long it lately took until the next request left the queue."""
        if len(self._left) < 2:
            return 1.0
        return (self._clock() - self._left[0]) / len(self._left)
