"""Metrics of quotes: how often times lay in their interval, how wide intervals were, and how late what came after them.

Owns: their names and texts. Never does: foretell. Called by: the quotes of a server.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from core_observers.buckets import REQUEST_BUCKETS
from core_observers.request_families import Families

KINDS = ("first", "end", "usual_end")
SECONDS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.1)


class QuoteMetrics:
    """The metrics of one server. seconds: of computing a quote, without preparing its body and asking the engine."""

    def __init__(self, registry: CollectorRegistry, prefix: str, model_name: str) -> None:
        families = Families(registry, prefix, model_name)
        self._seen = families.counters("quotes_scored", "Foretold times that are known by now.", "kind", KINDS)
        self._within = families.counters("quotes_within", "Those of them that lay in their interval.", "kind", KINDS)
        self._width = families.histogram(
            "quote_width_seconds", "Width of the interval of the first token.", REQUEST_BUCKETS
        )
        self._late = families.histogram(
            "quote_lateness_seconds", "How long after its interval a first token came.", REQUEST_BUCKETS
        )
        self.seconds = families.histogram("quote_seconds", "Computing a quote.", SECONDS)

    def observe(self, kind: str, within: bool, width: float, late: float) -> None:
        """Count an outcome. width, late: in seconds."""
        self._seen[kind].inc()
        if within:
            self._within[kind].inc()
        if kind == "first":
            self._width.observe(width)
            self._late.observe(late)
