"""The metrics of several API processes, asked for by one of them.

Owns: `MetricsRounds`: questions under way and their answers. Never does: look into metrics. Called by: the supervisor.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection

from core_apis.api_child import ApiChild
from core_apis.api_messages import AskMetrics, TellMetrics
from core_observers.shared_metrics import Family

PATIENCE_S = 1.5


class MetricsRounds:
    """Those of one supervisor."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._rounds: dict[int, _Round] = {}

    async def ask(self, children: Collection[ApiChild]) -> dict[int, list[Family]]:
        """The metrics of these processes, by their numbers; those that do not answer in time are missing."""
        question = next(self._numbers)
        found = self._rounds[question] = _Round(len(children))
        for child in children:
            child.send(AskMetrics(question))
        try:
            await asyncio.wait_for(found.complete.wait(), PATIENCE_S)
        except TimeoutError:
            pass  # what has come is told
        finally:
            del self._rounds[question]
        return found.families

    def told(self, message: TellMetrics) -> None:
        """A process has answered."""
        found = self._rounds.get(message.question)
        if found is not None:
            found.add(message.families)


class _Round:
    """The answers to one question."""

    def __init__(self, num_wanted: int) -> None:
        self.families: dict[int, list[Family]] = {}
        self.complete = asyncio.Event()
        self._num_wanted = num_wanted
        self.add({})

    def add(self, families: dict[int, list[Family]]) -> None:
        """One more answer."""
        self.families |= families
        if len(self.families) >= self._num_wanted:
            self.complete.set()
