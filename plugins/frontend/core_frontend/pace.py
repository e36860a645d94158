"""When something that is taken becomes free again, told from when it did before.

Owns: `Pace` (places of a queue, by the rate at which they became free) and `Durations` (requests that run, by how long others
did). Never does: refuse. Called by: a share of the queue, when it tells a client when to come back.

Each promises a time to one client after the other: the second that is refused is told a later one than the first, so they do
not all come back for the same place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from statistics import fmean, pstdev

RECENT = 32
"""Of so many the mean counts."""

DEVIATIONS = 1.5
"""Of how long requests run, on top of the mean: even the last of several that run should have ended by then."""

FIRST_GUESS_S = 1.0
"""Seconds that something takes of which none has been seen."""


class Pace:
    """Seconds for each unit (a request, a token) that becomes free.

    Only times between two of them count, with somebody waiting all the while: without a crowd nothing is learned of crowds.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._gaps: deque[float] = deque(maxlen=RECENT)
        self._units: deque[int] = deque(maxlen=RECENT)
        self._is_crowded = False
        self._promised = now

    def begin(self, now: float) -> None:
        """Something is taken where nothing was."""
        self._since = now
        self._is_crowded = False

    def free(self, now: float, units: int) -> None:
        """So many units have become free."""
        if self._is_crowded:
            self._gaps.append(now - self._since)
            self._units.append(units)
        self._is_crowded = True
        self._since = now

    def promise(self, now: float, units: int) -> float:
        """Seconds until a client who needs so many units more than are free may come back."""
        earliest = max(self._promised, now)
        self._promised = earliest + units * self._seconds_per_unit(now, units)
        return self._promised - now

    def _seconds_per_unit(self, now: float, units: int) -> float:
        still = now - self._since
        if not self._gaps:
            return max(FIRST_GUESS_S, still) / max(units, 1)
        seconds = max(sum(self._gaps), still)
        return seconds / max(sum(self._units), 1)


class Durations:
    """How long requests of one kind run."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._promises: deque[float] = deque()

    def end(self, seconds: float) -> None:
        """One has ended."""
        self._recent.append(seconds)

    def promise(self, now: float, begun: Iterable[float]) -> float:
        """Seconds until a further one may begin. begun: when those that run began, the oldest first."""
        while self._promises and self._promises[0] <= now:
            self._promises.popleft()
        begun = list(begun)
        usual = self._usual()
        rounds, place = divmod(len(self._promises), max(len(begun), 1))
        # One that runs for longer than usual may end at any time.
        soon = usual / max(len(begun), 1)
        begin = next(islice(begun, place, None), now)
        seconds = max(begin + usual - now, soon) + rounds * usual
        self._promises.append(now + seconds)
        return seconds

    def _usual(self) -> float:
        """Seconds within which most end: half of those who came back after the mean would come too early."""
        if not self._recent:
            return FIRST_GUESS_S
        return fmean(self._recent) + DEVIATIONS * pstdev(self._recent)
