"""Metrics of the live audit.

Owns: those metric families, made at each scrape. Never does: audit. Called by: the collector of the server's metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

CLEAN = "clean"
"""Under this name the statistics count rows without a difference; mismatches are counted by their kind."""


def audits(prefix: str, model_name: str, counts: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the families; none without audits."""
    if not counts:
        return
    rows = CounterMetricFamily(f"{prefix}audited_rows", "Rows that were computed again alone.", labels=("model_name",))
    rows.add_metric((model_name,), sum(counts.values()))
    yield rows
    text = "Rows that were not the same when they were computed again alone, by what differed."
    mismatches = CounterMetricFamily(f"{prefix}audit_mismatches", text, labels=("model_name", "kind"))
    for kind, count in sorted(counts.items()):
        if kind != CLEAN:
            mismatches.add_metric((model_name, kind), count)
    yield mismatches


def num_mismatches(counts: Mapping[str, int]) -> int:
    """Return the number of mismatches."""
    return sum(count for kind, count in counts.items() if kind != CLEAN)
