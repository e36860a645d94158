"""A second set of our metrics under vLLM's own names.

Owns: the second name of each metric, and why some of vLLM's are missing. Never does: count. Called by: the page of
metrics, if that is enabled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from prometheus_client.metrics_core import Metric

THEIRS = "vllm:"
ENGINE = {"engine": "0"}
"""A label that vLLM's metrics have, and that its dashboards query."""

ABSENT: Mapping[str, str] = MappingProxyType(
    {
        "corrupted_requests": "a request whose numbers are not finite ends with an error, and counts as such",
        "mm_cache_hits": "images and sound are not served",
        "mm_cache_queries": "images and sound are not served",
        "request_num_preemptions": "`explain` in a request tells it of one answer; `num_preemptions_total` has the sum",
    }
)
"""Metrics of vLLM 0.30 that our servers do not have, without their prefix, and why."""


def with_vllm_names(
    metrics: Iterable[Metric], prefix: str, hidden: Mapping[str, Iterable[str]] = MappingProxyType({})
) -> Iterator[Metric]:
    """Yield all metrics; each one whose name begins with `prefix` is followed by a copy with vLLM's prefix.

    hidden: further names of some of them, see `hidden_since`.
    """
    for metric in metrics:
        yield metric
        if metric.name.startswith(prefix):
            present = metric.name.removeprefix(prefix)
            for name in (present, *hidden.get(present, ())):
                yield _renamed(metric, prefix + present, THEIRS + name)


def _renamed(metric: Metric, before: str, after: str) -> Metric:
    copy = Metric(after, metric.documentation, metric.type)
    for sample in metric.samples:
        name = after + sample.name.removeprefix(before)
        labels = {**sample.labels, **ENGINE}
        copy.add_sample(name, labels, sample.value)
    return copy
