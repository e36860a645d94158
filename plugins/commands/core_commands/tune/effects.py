"""The effect of a value: ratios of scores in pairs of measurements, with their mean and its 95% interval.

Owns: `Pair`, `Effect`, the choice of steady pairs. Never does: measure. Called by: the trials, their report, the
speeds of `core diff`.

Scores are compared as logarithms of ratios, so that twice as fast and half as fast are equally far from no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from typing import Final

# fmt: off
QUANTILES: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
    2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on
"""97.5% quantiles of Student's distribution, by degrees of freedom from 1; the last one serves for more, which widens
an interval by at most 4%."""

STEADY: Final = 1.25
"""Quotient of the memory's bandwidths around a pair up to which the pair is steady."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Scores of two measurements, one after the other. bandwidths: GB/s before, between and after them."""

    before: float
    after: float
    bandwidths: tuple[float, ...] = ()

    @property
    def log_ratio(self) -> float:
        """Return the logarithm of the ratio of scores, with the value and without."""
        return log(self.after / self.before)

    @property
    def is_steady(self) -> bool:
        """Whether the machine was about equally fast for both."""
        return not self.bandwidths or max(self.bandwidths) <= STEADY * min(self.bandwidths)


@dataclass(frozen=True, slots=True)
class Effect:
    """A mean logarithm of ratios.

    half: half the width of its 95% interval; inf: unknown. num_pairs: pairs that count. num_left_out: unsteady ones.
    """

    mean: float
    half: float
    num_pairs: int
    num_left_out: int = 0

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Effect:
        """Return the effect of pairs. Unsteady ones do not count, unless they are more than half, or leave fewer than two."""
        steady = [pair for pair in pairs if pair.is_steady]
        counted = steady if len(steady) >= max(2, len(pairs) / 2) else list(pairs)
        logs = [pair.log_ratio for pair in counted]
        count = len(logs)
        if count < 2:
            return cls(logs[0] if logs else 0.0, inf, count, len(pairs) - count)
        mean = sum(logs) / count
        deviation = sqrt(sum((each - mean) ** 2 for each in logs) / (count - 1))
        quantile = QUANTILES[min(count - 1, len(QUANTILES)) - 1]
        return cls(mean, quantile * deviation / sqrt(count), count, len(pairs) - count)

    @property
    def low(self) -> float:
        """Return the lower end of the interval, in percent."""
        return percent(self.mean - self.half)

    @property
    def high(self) -> float:
        """Return the upper end of the interval, in percent."""
        return percent(self.mean + self.half)

    @property
    def percent(self) -> float:
        """Return the mean effect in percent."""
        return percent(self.mean)

    def text(self) -> str:
        """Return the effect as people read it."""
        if self.half == inf:
            return f"{self.percent:+.1f}% (one pair, no interval)"
        return f"{self.percent:+.1f}% (95%: {self.low:+.1f}% to {self.high:+.1f}%, {self.num_pairs} pairs)"


def percent(logarithm: float) -> float:
    """Return the logarithm of a ratio in percent above 1."""
    return inf if logarithm > 700 else 100.0 * (exp(logarithm) - 1.0)
