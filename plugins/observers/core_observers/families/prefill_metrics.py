"""Metrics of prompts that other servers may compute.

Owns: their names and texts. Never does: choose. Called by: the router of prompts.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from core_observers.request_families import Families

OUTCOMES = ("here", "there", "no_ticket", "not_received")


class PrefillMetrics:
    """The metrics of one server."""

    def __init__(self, registry: CollectorRegistry, prefix: str, model_name: str) -> None:
        families = Families(registry, prefix, model_name)
        self._outcomes = families.counters(
            "prefill_choices",
            "Prompts for which servers of prompts were asked: computed here, computed there and received, without a ticket, "
            "and with a ticket but no page.",
            "outcome",
            OUTCOMES,
        )

    def count(self, outcome: str) -> None:
        """Count a prompt."""
        self._outcomes[outcome].inc()
