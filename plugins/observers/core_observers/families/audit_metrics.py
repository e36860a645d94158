"""Metrics of the live audit.

Owns: those metric families, made at each scrape. Never does: audit. Called by: the collector of the server's metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

CLEAN = "clean"
CLEAN_ANSWERS = "clean_answers"
"""Under these names the statistics count rows and ended answers without a difference; mismatches are counted by their kind."""

ANSWER_KINDS = frozenset({"answer", "cached"})
"""Kinds of mismatches of ended answers; all others are those of rows."""


def audits(prefix: str, model_name: str, counts: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the families; none without audits."""
    if not counts:
        return
    rows = CounterMetricFamily(f"{prefix}audited_rows", "Rows that were computed again alone.", labels=("model_name",))
    of_answers = sum(counts.get(kind, 0) for kind in (CLEAN_ANSWERS, *ANSWER_KINDS))
    rows.add_metric((model_name,), sum(counts.values()) - of_answers)
    yield rows
    text = "Ended answers that were computed again without the cache."
    answers = CounterMetricFamily(f"{prefix}audited_answers", text, labels=("model_name",))
    answers.add_metric((model_name,), of_answers)
    yield answers
    text = "Rows and answers that were not the same when they were computed again, by what differed."
    mismatches = CounterMetricFamily(f"{prefix}audit_mismatches", text, labels=("model_name", "kind"))
    for kind, count in sorted(counts.items()):
        if kind not in (CLEAN, CLEAN_ANSWERS):
            mismatches.add_metric((model_name, kind), count)
    yield mismatches


def num_mismatches(counts: Mapping[str, int]) -> int:
    """Return the number of mismatches."""
    return sum(count for kind, count in counts.items() if kind not in (CLEAN, CLEAN_ANSWERS))
