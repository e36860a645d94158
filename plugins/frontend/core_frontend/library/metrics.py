"""Metrics as Python objects, for scripts that read them after a batch.

Owns: `Metric` and its kinds, and their names: vLLM's, including the prefix, since scripts compare these. Never does:
count. Called by: `LLMEngine.get_metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from core.api.stats import SchedulerStats
from core_frontend.request_tally import Buckets, RequestTally
from core_kv_connectors.kv_residency import RESIDENCY_BUCKETS, RESIDENCY_METRICS
from core_observers.step_sizes import STEP_BOUNDS

PREFIX = "vllm:"

GAUGES: Mapping[str, str] = {
    "num_requests_running": "num_running",
    "num_requests_waiting": "num_waiting",
    "kv_cache_usage_perc": "kv_cache_usage",
}
COUNTERS: Mapping[str, str] = {
    "prefix_cache_queries": "prefix_queries",
    "prefix_cache_hits": "prefix_hits",
    "num_preemptions": "num_preemptions",
    "spec_decode_num_drafts": "spec_num_drafts",
    "spec_decode_num_draft_tokens": "spec_num_draft_tokens",
    "spec_decode_num_accepted_tokens": "spec_num_accepted_tokens",
}
VECTORS: Mapping[str, str] = {"spec_decode_num_accepted_tokens_per_pos": "spec_accepted_by_place"}
"""Names of metrics, and the field of `SchedulerStats` for each."""

REQUEST_COUNTERS: Mapping[str, str] = {
    "prompt_tokens": "num_prompt_tokens",
    "generation_tokens": "num_output_tokens",
}
REQUEST_HISTOGRAMS: Mapping[str, str] = {
    "time_to_first_token_seconds": "first_token",
    "inter_token_latency_seconds": "gaps",
    "request_time_per_output_token_seconds": "per_token",
    "e2e_request_latency_seconds": "latency",
    "request_queue_time_seconds": "queue_time",
    "request_prompt_tokens": "prompt_length",
    "request_generation_tokens": "output_length",
}
"""Names of metrics, and the field of `RequestTally` for each; histograms are its `Buckets`."""

FINISH_REASONS = ("stop", "length", "abort", "error", "timeout")


@dataclass
class Metric:
    """A metric. name: with its prefix. labels: of the measured object."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)


@dataclass
class Counter(Metric):
    """A total. value: since the start."""

    value: int = 0


@dataclass
class Gauge(Metric):
    """A current value. value: now."""

    value: float = 0.0


@dataclass
class Vector(Metric):
    """Totals by position. values: since the start."""

    values: list[int] = field(default_factory=list)


@dataclass
class Histogram(Metric):
    """A histogram.

    count, sum: of all values. buckets: number of values up to each bound, keyed by its text; the last one is `+Inf`.
    """

    count: int = 0
    sum: float = 0.0
    buckets: dict[str, int] = field(default_factory=dict)


def metrics_of(stats: SchedulerStats, model_name: str, tally: RequestTally | None = None) -> list[Metric]:
    """Return all metrics, in the order of the tables. Those of drafts are 0 without speculation.

    tally: of requests; None: requests were not counted.
    """
    labels = {"model_name": model_name, "engine": "0"}
    found: list[Metric] = []
    for name, source in GAUGES.items():
        found.append(Gauge(PREFIX + name, dict(labels), float(getattr(stats, source))))
    for name, source in COUNTERS.items():
        found.append(Counter(PREFIX + name, dict(labels), getattr(stats, source)))
    for name, source in VECTORS.items():
        found.append(Vector(PREFIX + name, dict(labels), list(getattr(stats, source))))
    for name, row in zip(RESIDENCY_METRICS, stats.kv_residency, strict=False):
        found.append(_of_row(PREFIX + name, labels, RESIDENCY_BUCKETS, row))
    if stats.step_sizes:
        found.append(_of_row(PREFIX + "iteration_tokens_total", labels, STEP_BOUNDS, stats.step_sizes))
    if tally is not None:
        found += _of_requests(tally, labels)
    return found


def _of_requests(tally: RequestTally, labels: Mapping[str, str]) -> list[Metric]:
    """Return the metrics of requests."""
    found: list[Metric] = []
    for name, source in REQUEST_COUNTERS.items():
        found.append(Counter(PREFIX + name, dict(labels), getattr(tally, source)))
    for reason in FINISH_REASONS:
        of_reason = {**labels, "finished_reason": reason}
        found.append(Counter(PREFIX + "request_success", of_reason, tally.reasons[reason]))
    for name, source in REQUEST_HISTOGRAMS.items():
        buckets: Buckets = getattr(tally, source)
        found.append(_of_row(PREFIX + name, labels, buckets.bounds, [*buckets.counts, buckets.total]))
    return found


def _of_row(name: str, labels: Mapping[str, str], bounds: Sequence[float], row: Sequence[float]) -> Histogram:
    """Make a histogram. row: number of values in each bucket, the one without a bound last; then the sum of all."""
    *counts, total = row
    texts = [str(float(bound)) for bound in bounds]
    buckets: dict[str, int] = {}
    reached = 0
    for bound, count in zip([*texts, "+Inf"], counts, strict=True):
        reached += int(count)
        buckets[bound] = reached
    return Histogram(name, dict(labels), reached, total, buckets)
