"""Whether one engine is slower than another, judged by interleaved rounds with an interval.

Owns: the order of rounds, the interval, and the decision. Never does: run an engine (it asks two functions). Called by: the
diagnosis.

A block is four rounds in the order A B B A, so that a machine whose speed drifts slows both alike. The ratio of a block
is that of its sums. The interval is the one of the signed-rank test (Hodges and Lehmann, Estimates of Location Based on
Rank Tests, 1963) for logarithms of ratios: stalls of a busy machine hardly move it, and it assumes nothing about the noise
but that it strikes both engines alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from math import exp, log
from statistics import median
from typing import Final

SLOWER: Final = 0.05
"""Share of time by which an engine must be slower to be accused."""
CONFIDENCE: Final = 0.999
LOOKS: Final = (12, 24, 48, 96)
"""Blocks after which the interval is looked at; the error of all looks together stays below 0.4%."""
PARTS: Final = {
    "prompt": "a prompt's step takes {} longer",
    "step": "a generated token takes {} longer",
    "processor": "a request needs {} more processor time",
}
"""What is measured in a round, and how it is told. The clock sees waiting, processor time is steady on a busy machine."""

Times = tuple[float, float, float]
Round = Callable[[], Times]
"""Runs one round; returns its seconds, in the order of `PARTS`."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How much slower one engine is, as shares of the other's time.

    part: a key of `PARTS`. low, high: the interval. blocks: number that were measured.
    """

    part: str
    share: float
    low: float
    high: float
    blocks: int

    @property
    def is_slower(self) -> bool:
        """Whether the whole interval lies above the limit."""
        return self.low > SLOWER

    @property
    def is_settled(self) -> bool:
        """Whether the limit lies outside the interval."""
        return self.low > SLOWER or self.high < SLOWER

    def __str__(self) -> str:
        what = PARTS[self.part].format(f"{self.share:.0%}")
        return f"{what} (interval {self.low:.0%} to {self.high:.0%}, {self.blocks} interleaved blocks)"


def compare(now: Round, before: Round) -> list[Slowdown]:
    """Measure until one part is slower or all are settled, or for the last look. now, before: rounds of both engines."""
    ratios: dict[str, list[float]] = {part: [] for part in PARTS}
    found: list[Slowdown] = []
    for blocks in LOOKS:
        while len(ratios["step"]) < blocks:
            early, old, new, late = now(), before(), before(), now()
            for index, part in enumerate(PARTS):
                ratios[part].append((early[index] + late[index]) / max(old[index] + new[index], 1e-9))
        found = [_slowdown(part, values) for part, values in ratios.items()]
        if any(each.is_slower for each in found) or all(each.is_settled for each in found):
            break
    return found


def slowest(found: list[Slowdown]) -> Slowdown | None:
    """Return the part that is slower for certain, the one with the larger share if both are; None when neither is."""
    return max((each for each in found if each.is_slower), key=lambda each: each.share, default=None)


def _slowdown(part: str, ratios: list[float]) -> Slowdown:
    middle, low, high = interval([log(max(ratio, 1e-9)) for ratio in ratios])
    return Slowdown(part, exp(middle) - 1, exp(low) - 1, exp(high) - 1, len(ratios))


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return an estimate of the centre of symmetry, and an interval that has it with at least `CONFIDENCE`.

    values: at least 11, independent.
    """
    means = sorted((one + other) / 2 for one, other in combinations_with_replacement(values, 2))
    rank = _rank(len(values))
    return median(means), means[rank], means[-1 - rank]


@lru_cache
def _rank(number: int) -> int:
    """Return how many means at either end lie outside the interval: the quantile of the signed-rank statistic."""
    counts = [1]
    for rank in range(1, number + 1):
        # Each rank is part of the sum or not: the number of ways to reach every sum.
        longer = [*counts, *([0] * rank)]
        counts = [ways + (counts[at - rank] if at >= rank else 0) for at, ways in enumerate(longer)]
    tail = 0
    for rank, ways in enumerate(counts):
        tail += ways
        if 2 * tail > (1 - CONFIDENCE) * 2**number:
            return max(rank - 1, 0)
    raise AssertionError("the tail of a distribution grows to 1")
