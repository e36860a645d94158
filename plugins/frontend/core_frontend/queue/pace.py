"""Estimates of when a resource becomes free again, from when it became free before.

Owns: `Pace` (places of a queue, by the rate at which they became free) and `Durations` (running requests, by how long
others ran). Never does: refuse. Called by: a share of the queue, for the `Retry-After` of a refusal.

Each promises increasing times to successive clients: the second refused client gets a later time than the first, so
they do not all come back for the same place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from statistics import fmean, pstdev

RECENT = 32
"""Number of samples in the running mean."""

DEVIATIONS = 1.5
"""Standard deviations of run times added to the mean: even the last of several running requests should have ended by
then.
"""

FIRST_GUESS_S = 1.0
"""Seconds assumed for a duration without any sample."""


class Pace:
    """The rate at which units (requests, tokens) become free, in seconds per unit.

    Only times between two releases count, and only if a request waited all the time: an idle queue says nothing about
    its rate under load.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._gaps: deque[float] = deque(maxlen=RECENT)
        self._units: deque[int] = deque(maxlen=RECENT)
        self._is_crowded = False
        self._promised = now

    def begin(self, now: float) -> None:
        """Start a measurement: a unit is acquired after there was none."""
        self._since = now
        self._is_crowded = False

    def free(self, now: float, units: int) -> None:
        """Note that `units` units have become free."""
        if self._is_crowded:
            self._gaps.append(now - self._since)
            self._units.append(units)
        self._is_crowded = True
        self._since = now

    def promise(self, now: float, units: int) -> float:
        """Return the seconds until a client may come back that needs `units` more units than are free."""
        earliest = max(self._promised, now)
        self._promised = earliest + units * self._seconds_per_unit(now, units)
        return self._promised - now

    def seconds_each(self, now: float) -> float:
        """Return the seconds until one unit becomes free, which promises it to nobody."""
        return self._seconds_per_unit(now, 1)

    def _seconds_per_unit(self, now: float, units: int) -> float:
        still = now - self._since
        if not self._gaps:
            return max(FIRST_GUESS_S, still) / max(units, 1)
        seconds = max(sum(self._gaps), still)
        return seconds / max(sum(self._units), 1)


class Durations:
    """The durations of requests of one kind."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._promises: deque[float] = deque()
        self._known: float | None = FIRST_GUESS_S

    def end(self, seconds: float) -> None:
        """Note the duration of a request that has ended."""
        self._recent.append(seconds)
        self._known = None

    def next_end(self, now: float, begun: float) -> float:
        """Return when a request that began then probably ends, which promises its place to nobody."""
        return max(begun + self._usual(), now)

    def promise(self, now: float, begun: Iterable[float]) -> float:
        """Return the seconds until another request may begin. begun: start times of the running ones, oldest first."""
        while self._promises and self._promises[0] <= now:
            self._promises.popleft()
        begun = list(begun)
        usual = self._usual()
        rounds, place = divmod(len(self._promises), max(len(begun), 1))
        # A request that runs for longer than usual may end at any time.
        soon = usual / max(len(begun), 1)
        begin = next(islice(begun, place, None), now)
        seconds = max(begin + usual - now, soon) + rounds * usual
        self._promises.append(now + seconds)
        return seconds

    def _usual(self) -> float:
        """Return the seconds within which most requests end.

        With the mean, half of the clients would come back too early.
        """
        if self._known is None:
            self._known = fmean(self._recent) + DEVIATIONS * pstdev(self._recent)
        return self._known
