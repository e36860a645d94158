"""The search for the request that makes engines die.

Owns: `Suspects`: how often each request was being computed when an engine died, the search among several by halves, and
the verdict. Never does: run or end requests. Called by: the recovery after each death.

A single death by chance is attributed to no request: a request that has progressed since the last death starts again at
zero. Requests that were being computed in repeated deaths, without progress in between, are run without the others, one
half of them at a time; a half that progresses is innocent. A request that was alone when an engine died by its own
doing is suspected at once. A suspect that is computed alone when an engine dies once more is ended, and no other
request is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

ENOUGH = 2
"""Consecutive deaths after which requests are searched; a death with a single request counts as many.

One more such death is proof.
"""

ENOUGH_FROM_OUTSIDE: Mapping[str, int] = MappingProxyType({"killed": 4, "out_of_memory": 4})
"""The limits for causes that usually have nothing to do with any request; a death with a single request then counts once.
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A request that made engines die.

    name:       of the request.
    num_deaths: number of the latest deaths that it explains.
    """

    name: str
    num_deaths: int


@dataclass(frozen=True, slots=True)
class Presence:
    """A request's deaths since it last progressed. num_deaths: their number. weight: their sum, as evidence."""

    num_deaths: int = 0
    weight: int = 0

    def after(self, weight: int) -> Presence:
        """Return it with one more death, of this weight."""
        return Presence(self.num_deaths + 1, self.weight + weight)


class Suspects:
    """The evidence against requests, known by their ids."""

    def __init__(self) -> None:
        self._presence: dict[str, Presence] = {}
        self._searched: list[str] = []
        self._on_trial: list[str] = []
        self._num_unexplained = 0

    def died(
        self, computed: Collection[str], live: Collection[str], got_on: Callable[[str], bool], cause: str
    ) -> Verdict | None:
        """Note the death of an engine. Return the request that caused it, once that is certain.

        computed: requests in its last step; names that are not live stand for those of other clients.
        live:     all requests that have not ended.
        got_on:   whether a request has received enough tokens since it was last sent to an engine.
        cause:    of the death, one word.
        """
        self._num_unexplained += 1
        suspected = [name for name in computed if name in live]
        innocent = set(filter(got_on, suspected))
        before = {name: past for name, past in self._presence.items() if name in live and name not in innocent}
        enough = ENOUGH_FROM_OUTSIDE.get(cause, ENOUGH)
        is_alone = len(computed) == 1
        weight = ENOUGH if is_alone and cause not in ENOUGH_FROM_OUTSIDE else 1
        self._presence = before | {name: before.get(name, Presence()).after(weight) for name in suspected}
        caught = [name for name in self._on_trial if name in suspected]
        self._on_trial = []
        self._searched = caught or [name for name in suspected if self._presence[name].weight >= enough]
        if not is_alone or len(self._searched) != 1:
            return None
        (guilty,) = self._searched
        return self._convict(guilty) if before.get(guilty, Presence()).weight >= enough else None

    @property
    def searched(self) -> frozenset[str]:
        """The requests one of which makes engines die: they run without all others."""
        return frozenset(self._searched)

    def next_trial(self) -> list[str]:
        """Return the requests to run next, without all others; empty: all may run."""
        half = (len(self._searched) + 1) // 2
        self._on_trial = self._searched[:half]
        return self._on_trial

    def acquit(self) -> None:
        """Clear all requests on trial, which have progressed or ended."""
        for name in self._on_trial:
            self._searched.remove(name)
            self._presence.pop(name, None)
        self._on_trial = []

    def _convict(self, name: str) -> Verdict:
        """Return the verdict on a request. A death that one request explains is no evidence against another."""
        self._searched = []
        num_deaths = min(self._presence.pop(name).num_deaths, self._num_unexplained)
        self._num_unexplained = 0
        return Verdict(name, num_deaths)
