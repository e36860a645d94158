"""Requests that come to this engine from another one of its group, while they run.

Owns: `Arrivals`: how many choices each of them has, and what became of its pages until its client asks. Never does: fetch a
page, or hold a sequence. Called by: the observer of handoffs.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from core_kv_connectors.handoff.claim import Claim

MOST_OUTCOMES: Final = 4096
"""Limit on outcomes that no client has asked for; the oldest gives way."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of the pages of one request.

    num_pages, num_bytes: of those that came. seconds: that receiving them took. why: not all came; empty: all did.
    """

    num_pages: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    why: str = ""


class Arrivals:
    """The moved requests of one engine, by name."""

    def __init__(self) -> None:
        self._expected: dict[str, int] = {}
        self._outcomes: dict[str, Outcome] = {}

    def expect(self, name: str, num_choices: int, why: str = "") -> None:
        """Note that a request is to come. why: its pages cannot be claimed; empty: they are."""
        self._outcomes.pop(name, None)
        if why:
            self._keep(name, Outcome(why=why))
        else:
            self._expected[name] = num_choices

    def are_all(self, name: str, count: int) -> bool:
        """Whether `count` choices are all that a request has here. True for requests that were not moved."""
        return count >= self._expected.get(name, 0)

    def leave(self, name: str) -> None:
        """Note that one choice of a request does not come any more."""
        if name in self._expected:
            self._expected[name] -= 1

    def note(self, name: str, claim: Claim | None) -> None:
        """Keep what became of the pages of a request whose claim is about to end."""
        if self._expected.pop(name, None) is not None and claim is not None:
            self._keep(name, Outcome(claim.num_received, claim.num_bytes, claim.transfer_s, claim.failure))

    def take(self, name: str) -> dict[str, Any] | None:
        """Return the fields of a request's `Outcome`, once; None: its pages are still awaited, or it is unknown."""
        outcome = self._outcomes.pop(name, None)
        return None if outcome is None else msgspec.structs.asdict(outcome)

    def forget(self, prefix: str) -> None:
        """Forget the requests of a client that is gone, whose names begin so."""
        for table in (self._expected, self._outcomes):
            for name in [name for name in table if name.startswith(prefix)]:
                del table[name]

    def _keep(self, name: str, outcome: Outcome) -> None:
        while len(self._outcomes) >= MOST_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]
        self._outcomes[name] = outcome
