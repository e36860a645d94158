"""Metrics of running requests that leave a drained engine of a group.

Owns: their names and texts. Never does: move one. Called by: the application, for the moves of its group.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from core_observers.request_families import Families

OUTCOMES = ("moved", "computed", "no_ticket", "not_received", "stayed")


class MoveMetrics:
    """The metrics of one server."""

    def __init__(self, registry: CollectorRegistry, prefix: str, model_name: str) -> None:
        families = Families(registry, prefix, model_name)
        self._outcomes = families.counters(
            "request_moves",
            "Requests of engines that were drained: their pages came, computing them again was faster, there was no ticket, "
            "pages did not all come and were computed, and those that stayed.",
            "outcome",
            OUTCOMES,
        )

    def count(self, outcome: str) -> None:
        """Count a request."""
        self._outcomes[outcome].inc()
