"""How fast pages of KV go to other engines, and come from them.

Owns: `Pace`: a limit on bytes a second, and the waits that keep to it; `Streams`: how many connections move pages of one engine
at a time. Never does: read or write a connection. Called by: both ends of `tcp`, through `send` and `receive_into`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

PIECE_BYTES: Final = 1 << 15
"""Bytes of a page that are moved at once under a limit. With the lowest limit, `LEAST_RATE`, and 256 connections that share it,
each moves a piece every 0.84 s, so that no end takes another one for silent (2 s)."""
LEAST_RATE: Final = 10_000_000
"""Lowest limit in bytes a second."""
MOST_STREAMS: Final = 4
"""Connections that move pages of one engine at a time: a few, so that requests which come together neither wait for one
another's last page nor share the way so thinly that all of them are late."""


class Pace:
    """A limit of `rate` bytes a second that any number of threads share, in the order in which they ask.

    clock: seconds. wait: sleeps for some seconds.

    Over any time t no more than rate × t + `PIECE_BYTES` bytes are let through.
    """

    def __init__(
        self, rate: int, clock: Callable[[], float] = time.monotonic, wait: Callable[[float], object] = time.sleep
    ) -> None:
        self.rate = rate
        self._clock = clock
        self._wait = wait
        self._free = clock()
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> None:
        """Wait until `num_bytes`, at most `PIECE_BYTES`, may be moved."""
        with self._lock:
            now = self._clock()
            begin = max(now, self._free)
            self._free = begin + num_bytes / self.rate
        if begin > now:
            self._wait(begin - now)


def pace_of(rate: int | None) -> Pace | None:
    """Return a new limit; None: no limit."""
    return None if rate is None else Pace(rate)


class Streams:
    """The streams of pages from one engine, of which there are `MOST_STREAMS` at a time."""

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(MOST_STREAMS)

    def take(self, timeout_s: float) -> bool:
        """Take one as soon as one is free; False after `timeout_s` seconds."""
        return self._free.acquire(timeout=max(timeout_s, 0.0))

    def give_back(self) -> None:
        """Let the next one begin."""
        self._free.release()
