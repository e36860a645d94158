"""Metrics of speculation: accepted drafts, the time of proposing, the number of drafts in steps, and why there were
none.

Owns: those metric families, made at each scrape. Never does: measure. Called by: the collector of the server's metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from core.api.stats import SchedulerStats

BY_LABEL: Mapping[str, tuple[str, str]] = {
    "spec_decode_num_accepted_tokens_per_pos": ("position", "Draft tokens accepted, by their place in the draft."),
    "spec_decode_steps": ("num_drafts", "Steps that ordered drafts, by the most for a request."),
    "spec_decode_steps_without_drafts": ("cause", "Steps that ordered none, by cause."),
}
"""Label and meaning of the counters that have a label of their own."""


def drafts(prefix: str, model_name: str, stats: SchedulerStats) -> Iterator[Metric]:
    """Yield the families; none without speculation."""
    if stats.spec_off:
        text = "1 with the reason once the proposer was switched off."
        off = GaugeMetricFamily(f"{prefix}spec_decode_off", text, labels=("model_name", "reason"))
        off.add_metric((model_name, stats.spec_off), 1)
        yield off
    if not stats.spec_accepted_by_place:
        return
    text = "Seconds of proposing drafts."
    seconds = CounterMetricFamily(f"{prefix}spec_decode_draft_seconds", text, labels=("model_name",))
    seconds.add_metric((model_name,), stats.spec_draft_seconds)
    yield seconds
    by_place = dict(enumerate(stats.spec_accepted_by_place))
    counts: tuple[dict[Any, int], ...] = (by_place, stats.spec_steps_on, stats.spec_steps_off)
    for (name, (label, text)), by_value in zip(BY_LABEL.items(), counts, strict=True):
        counter = CounterMetricFamily(prefix + name, text, labels=("model_name", label))
        for value, count in sorted(by_value.items()):
            counter.add_metric((model_name, str(value)), count)
        yield counter
