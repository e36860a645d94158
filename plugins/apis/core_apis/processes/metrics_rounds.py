"""Requests of one API process for the metrics of the others.

Owns: `MetricsRounds`: pending requests and their answers. Never does: look into metrics. Called by: the supervisor.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection

from core_apis.processes.api_child import ApiChild
from core_apis.processes.api_messages import AskMetrics, TellMetrics
from core_observers.shared_metrics import Family

PATIENCE_S = 1.5


class MetricsRounds:
    """The pending requests of one supervisor."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._rounds: dict[int, _Round] = {}

    async def ask(self, children: Collection[ApiChild]) -> dict[int, list[Family]]:
        """Return the metrics of these processes by number, without those that do not answer in time."""
        question = next(self._numbers)
        found = self._rounds[question] = _Round(len(children))
        for child in children:
            child.send(AskMetrics(question))
        try:
            await asyncio.wait_for(found.complete.wait(), PATIENCE_S)
        except TimeoutError:
            pass  # return the answers that came in time
        finally:
            del self._rounds[question]
        return found.families

    def told(self, message: TellMetrics) -> None:
        """Store the answer of a process."""
        found = self._rounds.get(message.question)
        if found is not None:
            found.add(message.families)


class _Round:
    """The answers to one request."""

    def __init__(self, num_wanted: int) -> None:
        self.families: dict[int, list[Family]] = {}
        self.complete = asyncio.Event()
        self._num_wanted = num_wanted
        self.add({})

    def add(self, families: dict[int, list[Family]]) -> None:
        """Add an answer."""
        self.families |= families
        if len(self.families) >= self._num_wanted:
            self.complete.set()
