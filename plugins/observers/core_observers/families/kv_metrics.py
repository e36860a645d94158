"""Metrics of the KV cache: its configuration, the residency of blocks, and handoffs to other engines.

Owns: those metric families, made at each scrape. Never does: measure. Called by: the collector of the server's metrics.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from core.api.config import CacheConfig
from core.api.stats import SchedulerStats
from core_kv_connectors.kv_residency import RESIDENCY_BUCKETS, RESIDENCY_METRICS

BOUNDLESS = "+Inf"
HIDDEN = ("groups", "events")
"""Settings that are not plain values."""


def cache_info(prefix: str, model_name: str, cache: CacheConfig) -> Metric:
    """Return a gauge of 1 with the settings as labels."""
    labels = {"model_name": model_name}
    for name in cache.__struct_fields__:
        if name not in HIDDEN:
            labels[name] = str(getattr(cache, name))
    num_groups = max(len(cache.groups), 1)
    labels["num_groups"] = str(num_groups)
    info = GaugeMetricFamily(prefix + "cache_config_info", "The KV cache.", labels=tuple(labels))
    info.add_metric(tuple(labels.values()), 1)
    return info


def residency(prefix: str, model_name: str, rows: list[list[float]]) -> Iterator[Metric]:
    """Yield the histograms that the engine counts; none if it does not."""
    bounds = [str(float(bound)) for bound in RESIDENCY_BUCKETS]
    bounds.append(BOUNDLESS)
    for (name, text), row in zip(RESIDENCY_METRICS.items(), rows, strict=False):
        family = HistogramMetricFamily(prefix + name, text, labels=("model_name",))
        # The last entry of the row is the sum of all values and has no bound.
        cumulative = itertools.accumulate(row[:-1])
        buckets = list(zip(bounds, cumulative, strict=True))
        family.add_metric((model_name,), buckets, row[-1])
        yield family


def handoffs(prefix: str, model_name: str, stats: SchedulerStats) -> Iterator[Metric]:
    """Yield the families of handoffs between engines; none if there were none."""
    if not stats.kv_handoffs:
        return
    gauge = GaugeMetricFamily(prefix + "kv_leases", "Leases that have not ended.", labels=("model_name",))
    gauge.add_metric((model_name,), stats.kv_leases)
    yield gauge
    text = "Leases, claims and their pages, by what became of them."
    family = CounterMetricFamily(prefix + "kv_handoffs", text, labels=("model_name", "side", "what"))
    for name, count in sorted(stats.kv_handoffs.items()):
        side, _, what = name.partition(".")
        family.add_metric((model_name, side, what), count)
    yield family
