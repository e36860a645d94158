"""Metrics of a measurement, computed from the times of its requests.

Owns: the definitions of TTFT, TPOT, ITL, E2EL and goodput. Never does: measure or print. Called by: `bench serve`.

TTFT: from sending to the first part with text. ITL: between two parts of one answer. TPOT: the mean time for each token
after the first one of an answer. E2EL: from sending to the last part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from core.api.errors import UserError
from core_commands.bench.load import Outcome

LIMITED = ("ttft", "tpot", "e2el")
TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token (without the first)",
    "itl": "Inter-token latency",
    "e2el": "End-to-end latency",
}


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of each successful request; `itl` has all gaps of all requests."""

    ttft: list[float]
    tpot: list[float]
    itl: list[float]
    e2el: list[float]


def times_of(outcomes: Sequence[Outcome]) -> Times:
    """Return the times of the successful requests."""
    times = Times([], [], [], [])
    for outcome in outcomes:
        if outcome.error:
            continue
        first, last = outcome.arrivals[0], outcome.arrivals[-1]
        times.ttft.append(1e3 * (first - outcome.sent))
        times.e2el.append(1e3 * (last - outcome.sent))
        if outcome.output_tokens > 1:
            times.tpot.append(1e3 * (last - first) / (outcome.output_tokens - 1))
        for before, after in zip(outcome.arrivals, outcome.arrivals[1:], strict=False):
            times.itl.append(1e3 * (after - before))
    return times


def figures(
    outcomes: Sequence[Outcome],
    seconds: float,
    limits: Mapping[str, float],
    metrics: Sequence[str],
    percentiles: Sequence[float],
) -> dict[str, Any]:
    """Return the result, under vLLM's names. limits: see `good_share`. percentiles: 0 to 100."""
    well = [outcome for outcome in outcomes if not outcome.error]
    num_input = sum(outcome.prompt_tokens for outcome in well)
    num_output = sum(outcome.output_tokens for outcome in well)
    found: dict[str, Any] = {
        "duration": seconds,
        "completed": len(well),
        "failed": len(outcomes) - len(well),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "completed_without_usage": sum(not outcome.has_usage for outcome in well),
        "completed_without_text": sum(not outcome.has_text for outcome in well),
        "request_throughput": len(well) / seconds,
        "request_goodput": len(well) * good_share(well, limits) / seconds if limits else None,
        "output_throughput": num_output / seconds,
        "total_token_throughput": (num_input + num_output) / seconds,
        "max_concurrent_requests": most_at_once(outcomes),
        "max_send_delay_ms": 1e3 * max((outcome.late_s for outcome in outcomes), default=0.0),
    }
    times = times_of(well)
    for metric in metrics:
        found |= summary(metric, getattr(times, metric), percentiles)
    return found


def summary(metric: str, values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """Return mean, median, standard deviation and percentiles of one metric; 0 without values."""
    array = np.array(values if len(values) else [0.0])
    found = {
        f"mean_{metric}_ms": float(array.mean()),
        f"median_{metric}_ms": float(np.median(array)),
        f"std_{metric}_ms": float(array.std()),
    }
    for percent in percentiles:
        found[f"p{percent:g}_{metric}_ms"] = float(np.percentile(array, percent))
    return found


def good_share(outcomes: Sequence[Outcome], limits: Mapping[str, float]) -> float:
    """Return the share of requests within every limit (milliseconds by metric); an answer of one token has no TPOT to
    exceed.
    """
    if not outcomes:
        return 0.0
    num_good = 0
    for outcome in outcomes:
        times = times_of([outcome])
        kept = [max(getattr(times, metric), default=0.0) <= limit for metric, limit in limits.items()]
        num_good += all(kept)
    return num_good / len(outcomes)


def most_at_once(outcomes: Sequence[Outcome]) -> int:
    """Return the largest number of requests that ran at the same time."""
    changes = [(outcome.sent, 1) for outcome in outcomes] + [(outcome.ended, -1) for outcome in outcomes]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def parse_limits(words: Sequence[str], flag: str = "--goodput", metrics: Sequence[str] = LIMITED) -> dict[str, float]:
    """Parse words such as `ttft:500`. flag: of the argument, for messages.

    Raises UserError, also for two different limits of one metric.
    """
    limits: dict[str, float] = {}
    for word in words:
        metric, _, text = word.partition(":")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if metric not in metrics or not 0 < value < inf:
            raise UserError(f"{flag} {word}: expected METRIC:MS with one of {', '.join(metrics)}, such as ttft:500.")
        if limits.setdefault(metric, value) != value:
            raise UserError(f"{flag} {metric}:{limits[metric]:g} and {word} contradict each other; leave one out.")
    return limits


def parse_percentiles(words: Sequence[str]) -> list[float]:
    """Parse words such as `99`. Raises UserError."""
    found: list[float] = []
    for word in words:
        try:
            value = float(word)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 100:
            raise UserError(f"--metric-percentiles {word}: expected numbers from 0 to 100, such as 50,99.")
        found.append(value)
    return found
