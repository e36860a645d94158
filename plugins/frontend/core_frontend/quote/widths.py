"""Intervals around predictions that hold a stated share of what happens, learned from what happened.

Owns: `Width` (the ratio of truth to prediction) and `Lengths` (of answers). Never does: predict times. Called by: the forecast.

An interval is the narrowest that holds its share of the last ratios. After each outcome the share moves so that misses come as
often as they should (adaptive conformal inference): what comes about does not depend on how ratios are distributed. A share may
move beyond all of them, and the interval is then wider than they are: while outcomes of a deep queue come seconds late, many
miss in a row, and an interval that ended at the outermost ratio would forget these misses.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Final, NamedTuple

MISSES: Final = 0.092
"""Share of outcomes outside of an interval. A little less than a tenth, since outcomes come late."""
TAIL: Final = 0.046
"""Share of outcomes beyond each of the one-sided limits, `early` and `late`."""
RECENT: Final = 256
LEAST: Final = 16
"""Number of outcomes before which an interval is a guess."""
LEVEL_RATE: Final = 0.02
MOST_LEVEL: Final = 0.25
LEAST_LEVEL: Final = -0.5
REACH: Final = 1.0
"""By how many times the distance of the outermost ratios a limit moves outwards at a level of -1."""


class Factors(NamedTuple):
    """Factors on a prediction. low, high: ends of the interval. early, late: what 19 of 20 outcomes come after, and before."""

    low: float
    high: float
    early: float
    late: float


GUESS: Final = Factors(0.5, 3.0, 0.5, 3.0)


class Width:
    """The ratios of one kind of prediction. num_seen, num_within: outcomes, and those within their interval."""

    def __init__(self) -> None:
        self.num_seen = 0
        self.num_within = 0
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._misses = MISSES
        self._early = TAIL
        self._late = TAIL

    def factors(self) -> Factors:
        """Return the factors on a prediction now."""
        ratios = self._sorted
        if len(ratios) < LEAST:
            return GUESS
        low, high = _narrowest(ratios, 1.0 - max(self._misses, 0.0))
        early, late = _quantile(ratios, max(self._early, 0.0)), _quantile(ratios, 1.0 - max(self._late, 0.0))
        reach = REACH * (ratios[-1] - ratios[0])
        beyond = reach * max(-self._misses, 0.0) / 2
        return Factors(
            max(low - beyond, 0.0),
            high + beyond,
            max(early - reach * max(-self._early, 0.0), 0.0),
            late + reach * max(-self._late, 0.0),
        )

    def observe(self, ratio: float, factors: Factors) -> bool:
        """Learn the ratio of an outcome whose interval had these factors. Returns whether it lay within."""
        within = factors.low <= ratio <= factors.high
        self.num_seen += 1
        self.num_within += within
        if factors != GUESS:
            self._misses = _moved(self._misses, MISSES, missed=not within)
            self._early = _moved(self._early, TAIL, missed=ratio < factors.early)
            self._late = _moved(self._late, TAIL, missed=ratio > factors.late)
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


def _narrowest(ratios: list[float], share: float) -> tuple[float, float]:
    """Return the ends of the narrowest interval with this share of the ratios."""
    count = min(int(share * (len(ratios) + 1) + 1.0), len(ratios))
    first = min(range(len(ratios) - count + 1), key=lambda at: ratios[at + count - 1] - ratios[at])
    return ratios[first], ratios[first + count - 1]


def _quantile(ratios: list[float], level: float) -> float:
    """Return the quantile; beyond the outermost ratios, these."""
    place = min(max(level * (len(ratios) + 1) - 1, 0.0), len(ratios) - 1.0)
    index = int(place)
    below = ratios[index]
    above = ratios[min(index + 1, len(ratios) - 1)]
    return below + (place - index) * (above - below)


def _moved(level: float, wanted: float, *, missed: bool) -> float:
    """Return the level after an outcome: lower, so that the interval is wider, after a miss. wanted: share of misses."""
    level += LEVEL_RATE * (wanted - missed)
    return min(max(level, LEAST_LEVEL), MOST_LEVEL)
