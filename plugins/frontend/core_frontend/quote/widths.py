"""Intervals around predictions that hold a stated share of what happens, learned from what happened.

Owns: `Width` (the ratio of truth to prediction) and `Lengths` (of answers). Never does: predict times. Called by: the forecast.

An interval spans two quantiles of the last ratios. After each outcome the quantiles' levels move so that misses on either side
come as often as they should (adaptive conformal inference): the long-run share does not depend on how ratios are distributed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

SHARE = 0.9
"""Share of outcomes within an interval."""
TAIL = 0.046
"""Share of outcomes on each side of an interval. A little less than half of the rest: outcomes come late, and what has changed
since the prediction costs a percent or two of coverage on a busy server."""
RECENT = 256
LEAST = 16
"""Number of outcomes before which an interval is a guess."""
GUESS = (0.5, 3.0)
LEVEL_RATE = 0.02
MOST_LEVEL = 0.25


class Width:
    """The ratios of one kind of prediction. num_seen, num_within: outcomes, and those within their interval."""

    def __init__(self) -> None:
        self.num_seen = 0
        self.num_within = 0
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._low = TAIL
        self._high = TAIL

    def factors(self) -> tuple[float, float]:
        """Return the factors on a prediction at both ends of its interval."""
        ratios = self._sorted
        if len(ratios) < LEAST:
            return GUESS
        return _quantile(ratios, self._low), _quantile(ratios, 1.0 - self._high)

    def observe(self, ratio: float, factors: tuple[float, float]) -> bool:
        """Learn the ratio of an outcome whose interval had these factors. Returns whether it lay within."""
        low, high = factors
        within = low <= ratio <= high
        self.num_seen += 1
        self.num_within += within
        if factors != GUESS:
            self._low = _moved(self._low, missed=ratio < low)
            self._high = _moved(self._high, missed=ratio > high)
        self._recent.append(ratio)
        insort(self._sorted, ratio)
        if len(self._recent) > RECENT:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        return within


class Lengths:
    """The lengths of the answers that ended last, and what an answer under way may be expected to have.

    Two guesses compete: a length like recent ones, and a share of its limit like recent ones. The one that erred less counts.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float]] = deque()
        self._lengths: list[float] = []
        self._shares: list[float] = []
        self._errors = [0.0, 0.0]

    def observe(self, length: int, most: int) -> None:
        """Learn the length of an answer that ended by itself or at its limit of `most` tokens."""
        share = length / max(most, 1)
        if self._recent:
            for place, guess in enumerate((_middle(self._lengths), _middle(self._shares) * most)):
                self._errors[place] += 0.1 * (abs(min(guess, most) - length) - self._errors[place])
        self._recent.append((length, share))
        insort(self._lengths, length)
        insort(self._shares, share)
        if len(self._recent) > RECENT:
            old, old_share = self._recent.popleft()
            del self._lengths[bisect_left(self._lengths, old)]
            del self._shares[bisect_left(self._shares, old_share)]

    def expect(self, most: int, have: int = 0, place: float = 0.5) -> float:
        """Return the length, of at most `most` tokens, that an answer which has `have` may get.

        place: of the recent answers that were longer than this, the one whose length counts, from 0 to 1. Several answers with
        different places end as several answers do: one after the other.
        """
        scale, known = (1, self._lengths) if self._errors[0] <= self._errors[1] else (most, self._shares)
        index = bisect_left(known, (have + 1) / scale)
        if index == len(known):  # longer than all of them
            return min(max(1.25 * have, have + 1.0), most) if known else most
        return min(known[index + int(place * (len(known) - index))] * scale, most)

    def usual(self, most: int) -> int | None:
        """Return the length that half of the recent answers had, or would have had with this limit."""
        return None if len(self._recent) < LEAST else max(int(self.expect(most)), 1)


def _middle(ordered: list[float]) -> float:
    return ordered[len(ordered) // 2]


def _quantile(ratios: list[float], level: float) -> float:
    """Return the quantile, and beyond the outermost ratios a little more than these."""
    place = level * (len(ratios) + 1) - 1
    if place < 0:
        return ratios[0] * 0.9
    if place > len(ratios) - 1:
        return ratios[-1] * 1.1
    index = int(place)
    below = ratios[index]
    above = ratios[min(index + 1, len(ratios) - 1)]
    return below + (place - index) * (above - below)


def _moved(level: float, *, missed: bool) -> float:
    """Return the level after an outcome: lower, so that the interval is wider, after a miss."""
    level += LEVEL_RATE * (TAIL - missed)
    return min(max(level, 0.0), MOST_LEVEL)
