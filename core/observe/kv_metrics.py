"""Metrics of the KV cache: its configuration, and how long blocks stay.

Owns: those metric families, made at each scrape. Never does: measure. Called by: the collector of the server's metrics.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from core.api.config import CacheConfig
from core.api.kv_residency import RESIDENCY_BUCKETS, RESIDENCY_METRICS

BOUNDLESS = "+Inf"
HIDDEN = ("groups", "events")
"""Settings that are no plain values."""


def cache_info(prefix: str, model_name: str, cache: CacheConfig) -> Metric:
    """A gauge of 1 with the settings as labels."""
    values = {name: str(getattr(cache, name)) for name in cache.__struct_fields__ if name not in HIDDEN}
    labels = {"model_name": model_name, **values, "num_groups": str(max(len(cache.groups), 1))}
    info = GaugeMetricFamily(prefix + "cache_config_info", "The KV cache.", labels=tuple(labels))
    info.add_metric(tuple(labels.values()), 1)
    return info


def residency(prefix: str, model_name: str, rows: list[list[float]]) -> Iterator[Metric]:
    """The histograms that the engine counts; none when it does not."""
    for (name, text), row in zip(RESIDENCY_METRICS.items(), rows, strict=False):
        family = HistogramMetricFamily(prefix + name, text, labels=("model_name",))
        buckets: list[tuple[str, float]] = []
        total = 0.0
        for bound, count in zip((*map(float, RESIDENCY_BUCKETS), None), row, strict=False):
            total += count
            buckets.append((BOUNDLESS if bound is None else str(bound), total))
        family.add_metric((model_name,), buckets, row[-1])
        yield family
