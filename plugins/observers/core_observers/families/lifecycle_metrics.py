"""Metrics of an engine that sleeps or pauses, and of its weights.

Owns: those metric families, made at each scrape. Never does: measure. Called by: the collector of the server's metrics.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from core.api.stats import SchedulerStats

STATES = {"awake": 0, "weights_offloaded": 1, "discard_all": 2}
"""vLLM's names of the states, and the sleep level of each."""


def lifecycle(prefix: str, model_name: str, stats: SchedulerStats) -> Iterator[Metric]:
    """Yield whether the engine sleeps, whether it is paused, and its weight version."""
    text = "Whether the engine is in this state: awake, asleep with its weights in a file, asleep without them."
    sleeping = GaugeMetricFamily(prefix + "engine_sleep_state", text, labels=("model_name", "sleep_state"))
    for state, level in STATES.items():
        sleeping.add_metric((model_name, state), float(stats.sleep_level == level))
    yield sleeping
    paused = GaugeMetricFamily(prefix + "engine_paused", "Whether requests wait for a resume.", labels=("model_name",))
    paused.add_metric((model_name,), float(stats.is_paused))
    yield paused
    if stats.weight_version:
        weights = InfoMetricFamily(prefix + "weights", "The weights in use, once they were replaced.")
        weights.add_metric((), {"model_name": model_name, "version": stats.weight_version})
        yield weights
