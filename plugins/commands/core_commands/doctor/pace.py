"""Whether one engine is slower than another, judged by interleaved rounds with an interval.

Owns: the order of rounds, the interval, and the decision. Never does: run an engine (it asks two functions). Called by: the
diagnosis.

A block is four rounds in the order A B B A, so that a machine whose speed drifts slows both alike. The ratio of a block
is that of its sums. The interval of the median ratio comes from order statistics, so it assumes nothing about the noise:
of 12 blocks, the least and the largest ratio enclose it with 99.95%.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from statistics import median
from typing import Final

SLOWER: Final = 0.05
"""Share of time by which an engine must be slower to be accused."""
CONFIDENCE: Final = 0.999
LOOKS: Final = (12, 24, 48)
"""Blocks after which the interval is looked at; the error of all looks together stays below 0.3%."""
PARTS: Final = ("prompt", "step")

Round = Callable[[], tuple[float, float]]
"""Runs one round; returns seconds of a prompt and of a generated token."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How much slower one engine is, as shares of the other's time.

    part: `prompt`, `step`. low, high: the interval. blocks: number that were measured.
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
        what = "a prompt's step takes" if self.part == "prompt" else "a generated token takes"
        return f"{what} {self.share:.0%} longer (interval {self.low:.0%} to {self.high:.0%}, {self.blocks} interleaved blocks)"


def compare(now: Round, before: Round) -> list[Slowdown]:
    """Measure until every part is settled, or for the last look. now, before: rounds of both engines."""
    ratios: dict[str, list[float]] = {part: [] for part in PARTS}
    found: list[Slowdown] = []
    for blocks in LOOKS:
        while len(ratios[PARTS[0]]) < blocks:
            early, old, new, late = now(), before(), before(), now()
            for index, part in enumerate(PARTS):
                ratios[part].append((early[index] + late[index]) / max(old[index] + new[index], 1e-9))
        found = [_slowdown(part, values) for part, values in ratios.items()]
        if all(each.is_settled for each in found):
            break
    return found


def slowest(found: list[Slowdown]) -> Slowdown | None:
    """Return the part that is slower for certain, the one with the larger share if both are; None when neither is."""
    return max((each for each in found if each.is_slower), key=lambda each: each.share, default=None)


def _slowdown(part: str, ratios: list[float]) -> Slowdown:
    low, high = interval(ratios)
    return Slowdown(part, median(ratios) - 1, low - 1, high - 1, len(ratios))


def interval(values: list[float]) -> tuple[float, float]:
    """Return an interval that has the median with at least `CONFIDENCE`, of at least 11 independent values."""
    ordered = sorted(values)
    number = len(ordered)
    tail, rank = 0.0, 0
    # The median lies below the value of rank k (from 0) with the chance of at most k heads in so many tosses.
    while rank < number // 2:
        tail += comb(number, rank) / 2**number
        if 2 * tail > 1 - CONFIDENCE:
            break
        rank += 1
    rank = max(rank - 1, 0)
    return ordered[rank], ordered[-1 - rank]
