"""Times at which refused clients may come back, by the times at which places are foretold to become free.

Owns: `ForeseenPlaces`: what was promised to whom, so that two clients do not come back for one place. Never does: foretell (the
forecast does), or reserve: who comes in between may take the place. Called by: a share of the queue.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate


class ForeseenPlaces:
    """The places of one limit that refused clients were told of and have not come back for."""

    def __init__(self) -> None:
        self._promises: deque[tuple[float, int]] = deque()

    def owed(self, now: float) -> int:
        """Return the units of clients that were told a time that has not come."""
        while self._promises and self._promises[0][0] <= now:
            self._promises.popleft()
        return sum(units for _, units in self._promises)

    def promise(self, now: float, freeing: Sequence[tuple[float, int]], units: int) -> float | None:
        """Return the seconds until a client that needs `units` more than are free may come back; None: nothing is foretold.

        freeing: seconds until units become free, with their number, in the order of these times.
        """
        wanted = units + self.owed(now)
        if not freeing:
            return None
        free = list(accumulate(count for _, count in freeing))
        seconds, _ = freeing[min(bisect_left(free, wanted), len(free) - 1)]
        # Beyond those that wait now, others take their places at the same pace.
        seconds *= max(1.0, wanted / free[-1])
        # Whole seconds, as the header has them; times grow from one client to the next.
        until = now + max(1.0, math.ceil(seconds))
        if self._promises:
            until = max(until, self._promises[-1][0])
        self._promises.append((until, units))
        return until - now
