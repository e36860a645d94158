"""Metrics of recorded steps: how calls were run, and the rows that they were padded with.

Owns: those metric families, made at each scrape, and the names of their counts. Never does: count. Called by: the collector of
the server's metrics; the observer that reports the counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

NAME: Final = "recordings:"
"""Beginning of the names of these counts among those of the steps' work: NAME, what is counted, a colon, the kind of call."""
WAYS: Final = ("direct", "recorded", "replayed")
ROWS: Final = {
    "rows": ("recorded_rows", "Rows of calls that were recorded or replayed, padding included, by kind of call."),
    "padding": ("padded_rows", "Rows of these calls that belonged to no step, by kind of call."),
}


def recordings(prefix: str, model_name: str, counts: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the families; none where nothing was counted."""
    found = {name.removeprefix(NAME): count for name, count in counts.items() if name.startswith(NAME)}
    if not found:
        return
    text = "Calls of the model's parts by kind, and how they were run: directly, as they were recorded, by their recording."
    calls = CounterMetricFamily(prefix + "recorded_calls", text, labels=("model_name", "kind", "how"))
    families = {
        what: CounterMetricFamily(prefix + name, words, labels=("model_name", "kind"))
        for what, (name, words) in ROWS.items()
    }
    for name, count in sorted(found.items()):
        what, _, kind = name.partition(":")
        if what in WAYS:
            calls.add_metric((model_name, kind, what), count)
        else:
            families[what].add_metric((model_name, kind), count)
    yield calls
    yield from families.values()
