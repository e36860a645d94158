"""Our metrics once more, under vLLM's own names.

Owns: the second name of each metric. Never does: count. Called by: the page of metrics, where it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric

THEIRS = "vllm:"
ENGINE = {"engine": "0"}
"""A label that vLLM's metrics have, and its dashboards ask for."""


def with_vllm_names(metrics: Iterable[Metric], prefix: str) -> Iterator[Metric]:
    """All metrics, and behind each whose name begins with `prefix` the same with vLLM's prefix."""
    for metric in metrics:
        yield metric
        if metric.name.startswith(prefix):
            yield _renamed(metric, prefix)


def _renamed(metric: Metric, prefix: str) -> Metric:
    copy = Metric(THEIRS + metric.name.removeprefix(prefix), metric.documentation, metric.type)
    for sample in metric.samples:
        name = THEIRS + sample.name.removeprefix(prefix)
        labels = {**sample.labels, **ENGINE}
        copy.add_sample(name, labels, sample.value)
    return copy
