"""How many requests may wait, and when to come back.

Owns: `QueueLimit`. Never does: queue (the scheduler does) or answer (the server does). Called by: `AsyncEngine`.

A request waits until its first output. The limit is checked where requests arrive, before their bodies are even read, so
a refused one costs nothing.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from core.api.errors import RequestError

RECENT = 32
LONGEST_WAIT_S = 60


class QueueLimit:
    """The requests that wait for the engine, and how many may.

    max_requests: requests that wait; 0 is no limit.
    max_tokens: tokens of their prompts; 0 is no limit.
    clock: seconds.
    """

    def __init__(self, max_requests: int, max_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self._clock = clock
        self._waiting: dict[str, int] = {}
        self._num_tokens = 0
        self._num_arriving = 0
        self._since = clock()
        self._gaps: deque[float] = deque(maxlen=RECENT)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._waiting

    def __len__(self) -> int:
        """Requests that wait, those included whose bodies are being read."""
        return len(self._waiting) + self._num_arriving

    def check(self, num_requests: int = 1) -> None:
        """Raise RequestError (429) when `num_requests` more may not wait."""
        waiting = len(self)
        if self.max_requests and waiting + num_requests > self.max_requests:
            self._refuse(f"{waiting} requests wait already; at most {self.max_requests} may (--max-num-queued-reqs).")

    @contextmanager
    def arriving(self) -> Iterator[Arrival]:
        """Keep a place for a request while it is prepared. Raises RequestError (429) when there is none."""
        self.check()
        arrival = Arrival(self)
        try:
            yield arrival
        finally:
            arrival.end()

    def enter(self, num_tokens: Mapping[str, int], *, again: bool = False) -> None:
        """Requests begin to wait, all or none; num_tokens: of each one's prompt, by id. Those that wait already stay.

        again: they were taken by an earlier server, so they are not refused.
        Raises RequestError (429) when there is no room. One request always may wait, however long it is.
        """
        new = {request_id: count for request_id, count in num_tokens.items() if request_id not in self._waiting}
        total = sum(new.values())
        if not again:
            self._check_room(len(new), total)
        if not self._waiting:
            self._since = self._clock()
        self._waiting |= new
        self._num_tokens += total

    def leave(self, request_id: str) -> None:
        """A request waits no more: it has its first output, or it has ended. Others are ignored."""
        num_tokens = self._waiting.pop(request_id, None)
        if num_tokens is not None:
            self._num_tokens -= num_tokens
            now = self._clock()
            self._gaps.append(now - self._since)
            self._since = now

    def _check_room(self, num_requests: int, total: int) -> None:
        """total: their prompt tokens. Raises RequestError (429)."""
        self.check(num_requests)
        if self.max_tokens and self._waiting and self._num_tokens + total > self.max_tokens:
            self._refuse(
                f"{self._num_tokens} prompt tokens wait already, and this request has {total}; at most "
                f"{self.max_tokens} may wait (--max-num-queued-tokens)."
            )

    def _refuse(self, why: str) -> None:
        seconds = self._seconds_per_request() * max(1, len(self) // 2)
        retry_after = min(LONGEST_WAIT_S, max(1, math.ceil(seconds)))
        raise RequestError(
            f"The server is busy: {why} Try again in {retry_after} s.",
            status=429,
            code="queue_full",
            retry_after=retry_after,
        )

    def _seconds_per_request(self) -> float:
        """Recent mean seconds between two requests leaving the queue, counted only while requests wait."""
        if not self._gaps:
            return 1.0
        still = self._clock() - self._since
        return max(sum(self._gaps) / len(self._gaps), still / RECENT)


class Arrival:
    """The place of one request that is being prepared. `end` gives it back, once; a second call does nothing.

    begin: monotonic seconds.
    """

    def __init__(self, limit: QueueLimit) -> None:
        self.begin = time.monotonic()
        self._limit: QueueLimit | None = limit
        limit._num_arriving += 1

    def end(self) -> None:
        """The request is prepared, or never will be."""
        if self._limit is not None:
            self._limit._num_arriving -= 1
            self._limit = None
