"""Metrics of the engine's steps: their sizes, and why requests are not in them yet.

Owns: those metric families, made at each scrape. Never does: measure. Called by: the collector of the server's metrics.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from core.api.stats import SchedulerStats
from core_observers.step_sizes import STEP_BOUNDS

REASONS = {"capacity": "num_for_room", "deferred": "num_deferred"}
"""The reason why requests wait, and the field of the statistics that counts them: for room in the batch; for keys and
values that are being loaded, or for a grammar.
"""


def waiting(prefix: str, model_name: str, stats: SchedulerStats) -> Iterator[Metric]:
    """Yield the waiting requests by reason."""
    gauge = GaugeMetricFamily(
        prefix + "num_requests_waiting_by_reason", "Requests that wait, by reason.", labels=("model_name", "reason")
    )
    for reason, source in REASONS.items():
        gauge.add_metric((model_name, reason), getattr(stats, source))
    yield gauge


def sizes(prefix: str, model_name: str, row: list[int]) -> Iterator[Metric]:
    """Yield the histogram of steps; none before the first step."""
    if not row:
        return
    bounds = [str(float(bound)) for bound in STEP_BOUNDS]
    bounds.append("+Inf")
    cumulative = itertools.accumulate(row[:-1])
    buckets = list(zip(bounds, cumulative, strict=True))
    family = HistogramMetricFamily(prefix + "iteration_tokens_total", "Tokens of a step.", labels=("model_name",))
    family.add_metric((model_name,), buckets, row[-1])
    yield family
