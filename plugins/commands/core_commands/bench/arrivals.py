"""Arrival times of requests.

Owns: their computation. Never does: wait. Called by: the load.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """Average requests per second, at the first request and at the last; inf: all at once.

    exponential: whether the rate rises by equal factors rather than equal steps.
    """

    start: float
    end: float
    exponential: bool = False

    def at(self, share: float) -> float:
        """Return the rate after that share of the requests."""
        if self.start == self.end:
            return self.start
        if self.exponential:
            return float(self.start * (self.end / self.start) ** share)
        return self.start + (self.end - self.start) * share


def arrival_times(count: int, rates: Rates, burstiness: float, seed: int) -> list[float]:
    """Return `count` ascending times in seconds, the first 0.

    burstiness: shape of the gamma distribution of gaps; 1 makes a Poisson process.
    """
    if math.isinf(rates.start):
        return [0.0] * count
    draw = random.Random(f"{seed} {rates.start} {burstiness}")
    times = [0.0]
    for number in range(1, count):
        rate = rates.at((number - 1) / max(1, count - 2))
        gap = draw.gammavariate(burstiness, 1 / (rate * burstiness))
        times.append(times[-1] + gap)
    return times
