"""Metrics of the estimated work of an engine's steps, by device.

Owns: those metric families, made at each scrape. Never does: count, or know shapes. Called by: the collector of the server's
metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from core_observers.work import WorkOf

TEXTS = {
    "flops": "Floating-point operations of all steps on each device, from the model's shapes.",
    "read_bytes": "Bytes of weights, keys and values that all steps read on each device, from the model's shapes.",
    "write_bytes": "Bytes of keys and values that all steps wrote on each device, from the model's shapes.",
}


def work(prefix: str, model_name: str, counts: Mapping[str, int], work_of: WorkOf | None) -> Iterator[Metric]:
    """Yield the families; none without `work_of`, or before the first step."""
    if work_of is None or not counts:
        return
    for (name, text), value in zip(TEXTS.items(), work_of(counts), strict=True):
        family = CounterMetricFamily(f"{prefix}estimated_{name}_per_gpu", text, labels=("model_name",))
        family.add_metric((model_name,), value)
        yield family
