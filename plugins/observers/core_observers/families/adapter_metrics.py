"""The metric of adapters: which ones requests use now.

Owns: its name and labels. Never does: count. Called by: the server's metrics, where the server has adapters.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

LABELS = ("model_name", "max_lora", "running_lora_adapters", "waiting_lora_adapters")


class AdapterUse(Protocol):
    """The adapters of the requests of one process. max_loras: how many a step may have."""

    max_loras: int

    def in_use(self) -> tuple[list[str], list[str]]:
        """Return the names of adapters whose requests have output, and of those whose requests still wait for it."""
        ...


class AdapterCollector(Collector):
    """A collector of the metric at each scrape. Its value is the time in seconds since the epoch, as vLLM has it."""

    def __init__(self, prefix: str, model_name: str, use: AdapterUse) -> None:
        self._prefix = prefix
        self._model_name = model_name
        self._use = use

    def collect(self) -> Iterable[Metric]:
        """Return the metric."""
        running, waiting = self._use.in_use()
        text = "Adapters that requests use now; the value is the time."
        gauge = GaugeMetricFamily(self._prefix + "lora_requests_info", text, labels=LABELS)
        labels = (self._model_name, str(self._use.max_loras), ",".join(running), ",".join(waiting))
        gauge.add_metric(labels, time.time())
        yield gauge
