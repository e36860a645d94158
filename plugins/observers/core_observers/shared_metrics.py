"""Metrics of several processes on one page.

Owns: families of samples as messages, and the page made of those of all processes. Never does: query the processes.
Called by: the server if there are several API processes.

Each process has series of its own, labelled `api_process`: a restarted process begins at zero, which only its own
series show; queries add them up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

LABEL = "api_process"


class Sample(msgspec.Struct, array_like=True):
    """One line of the page."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, array_like=True):
    """One metric. kind: `counter`, `gauge`, ..."""

    name: str
    text: str
    kind: str
    samples: list[Sample]


AskOthers = Callable[[], Awaitable[dict[int, list[Family]]]]
"""A function that returns the metrics of all other processes, by their numbers."""


def families(metrics: Iterable[Metric]) -> list[Family]:
    """Return the metrics as messages."""
    found: list[Family] = []
    for metric in metrics:
        samples = [Sample(each.name, dict(each.labels), each.value) for each in metric.samples]
        found.append(Family(metric.name, metric.documentation, metric.type, samples))
    return found


def page(*parts: Iterable[Metric]) -> bytes:
    """Return metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Given([metric for part in parts for metric in part]))
    return generate_latest(registry)


def merged(by_process: Mapping[int, list[Family]]) -> Iterator[Metric]:
    """Yield the metrics of all processes; each sample is labelled with the number of its process."""
    metrics: dict[str, Metric] = {}
    for number, all_families in sorted(by_process.items()):
        for family in all_families:
            metric = metrics.setdefault(family.name, Metric(family.name, family.text, family.kind))
            for sample in family.samples:
                labels = {**sample.labels, LABEL: str(number)}
                metric.add_sample(sample.name, labels, sample.value)
    yield from metrics.values()


class _Given(Collector):
    """A collector of existing metrics."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
