"""Which request an engine has died of.

Owns: `Suspects`: how often each request was being computed when an engine died, the search among several by halves, and
the verdict. Never does: run or end requests. Called by: the recovery after each death.

A death by chance is nobody's fault: whoever got on since the last one begins anew. Those in whose presence engines die again
and again, before they got on, are run without the others, one half of them at a time; half that gets on is innocent. The
one that was computed alone when an engine died ends, and nobody else does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

ENOUGH = 2
"""Deaths in a row after which requests are searched. One more, alone, is proof."""

ENOUGH_FROM_OUTSIDE: Mapping[str, int] = MappingProxyType({"killed": 4, "out_of_memory": 4})
"""The same by causes that most often have nothing to do with any request."""


class Suspects:
    """Requests are known by their ids."""

    def __init__(self) -> None:
        self._num_deaths: dict[str, int] = {}
        self._searched: list[str] = []
        self._on_trial: list[str] = []

    def died(
        self, computed: Collection[str], live: Collection[str], got_on: Callable[[str], bool], cause: str
    ) -> str | None:
        """An engine has died. Returns the request that it died of, once that is certain.

        computed: requests in its last step; names that are not live stand for those of others.
        live:     all requests that have not ended.
        got_on:   whether a request has got tokens enough since it was last sent to an engine.
        cause:    of the death, in a word.
        """
        before = self._num_deaths
        self._num_deaths = {name: before[name] for name in before if name in live}
        suspected = [name for name in computed if name in live]
        for name in suspected:
            known = 0 if got_on(name) else self._num_deaths.get(name, 0)
            self._num_deaths[name] = known + 1
        enough = ENOUGH_FROM_OUTSIDE.get(cause, ENOUGH)
        caught = [name for name in self._on_trial if name in suspected]
        self._on_trial = []
        self._searched = caught or [name for name in suspected if self._num_deaths[name] >= enough]
        if len(self._searched) == 1 and list(computed) == self._searched:
            (guilty,) = self._searched
            if self._num_deaths[guilty] > enough:
                self._searched = []
                return guilty
        return None

    def next_trial(self) -> list[str]:
        """The requests to be run next, without all others; none: everybody may run."""
        half = (len(self._searched) + 1) // 2
        self._on_trial = self._searched[:half]
        return self._on_trial

    def acquit(self) -> None:
        """All on trial have got on, or have ended."""
        for name in self._on_trial:
            self._searched.remove(name)
            self._num_deaths.pop(name, None)
        self._on_trial = []
