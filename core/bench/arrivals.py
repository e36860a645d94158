"""When requests are sent.

Owns: arrival times. Never does: wait. Called by: the load.
"""

from __future__ import annotations

import math
import random


def arrival_times(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """`count` ascending times in seconds, the first 0.

    rate: requests a second on average; inf: all at once.
    burstiness: shape of the gamma distribution of gaps; 1 makes a Poisson process.
    """
    if math.isinf(rate):
        return [0.0] * count
    draw = random.Random(f"{seed} {rate} {burstiness}")
    times = [0.0]
    for _ in range(count - 1):
        gap = draw.gammavariate(burstiness, 1 / (rate * burstiness))
        times.append(times[-1] + gap)
    return times[:count]
