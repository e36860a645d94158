"""Metrics of an event loop's callbacks.

Owns: their names. Never does: measure. Called by: the server, with --max-callback-ms.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class Measured(Protocol):
    """The measurements of a loop. num_slow: callbacks over the limit. longest_s: CPU seconds of the longest one."""

    num_slow: int
    longest_s: float


class LoopCollector(Collector):
    """A collector that turns the state of a watch into metrics at each scrape."""

    def __init__(self, prefix: str, model_name: str, watch: Measured) -> None:
        self._prefix = prefix
        self._labels = (model_name,)
        self._watch = watch

    def collect(self) -> Iterable[Metric]:
        """Return both metrics; the collector is called at each scrape."""
        text = "Callbacks of the event loop that took longer than --max-callback-ms."
        counter = CounterMetricFamily(self._prefix + "slow_callbacks", text, labels=("model_name",))
        counter.add_metric(self._labels, self._watch.num_slow)
        yield counter
        text = "Processor time of the longest callback of the event loop."
        gauge = GaugeMetricFamily(self._prefix + "longest_callback_seconds", text, labels=("model_name",))
        gauge.add_metric(self._labels, self._watch.longest_s)
        yield gauge
