"""S5 with requests that arrive when they like: Poisson arrivals, and how many were served well enough.

Owns: the arrival times, the load, the goodput. Never does: start servers. Called by: the serving scenarios.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.streaming import Stream, complete

TTFT_LIMIT_S = 0.5
ITL_LIMIT_S = 0.03


@dataclass(frozen=True, slots=True)
class Goodput:
    """share: good requests among all; rate: good requests a second, over the time in which requests arrived."""

    share: float
    rate: float


def arrival_times(rate: float, count: int, seed: int) -> list[float]:
    """`count` ascending times in seconds, the first 0, with exponential gaps of mean 1 / rate."""
    draw = random.Random(f"{seed} {rate}")
    times = [0.0]
    for _ in range(count - 1):
        times.append(times[-1] + draw.expovariate(rate))
    return times


def is_good(stream: Stream, ttft_limit: float = TTFT_LIMIT_S, itl_limit: float = ITL_LIMIT_S) -> bool:
    """Whether the first token came in time and the mean gap after it was short enough. Times start with the arrival."""
    first, last = stream.arrivals[0], stream.arrivals[-1]
    gap = (last - first) / (stream.tokens - 1) if stream.tokens > 1 else 0.0
    return first <= ttft_limit and gap <= itl_limit


def goodput(streams: Sequence[Stream], offered: float) -> Goodput:
    """At `offered` requests a second on average."""
    share = statistics.fmean(is_good(stream) for stream in streams) if streams else 0.0
    return Goodput(share, share * offered)


async def arrive(
    base: str,
    model: str,
    prompts: Sequence[Sequence[int]],
    times: Sequence[float],
    max_tokens: int,
    extra: Mapping[str, Any] | None = None,
) -> list[Stream]:
    """Send each prompt at its time, whatever became of those before it."""
    start = time.perf_counter()

    async def one(prompt: Sequence[int], at: float) -> Stream:
        await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
        return await complete(base, model, prompt, max_tokens, extra)

    return await asyncio.gather(*(one(prompt, at) for prompt, at in zip(prompts, times, strict=True)))
