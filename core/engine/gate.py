"""The contract of gates, at which sequences wait before they reach the scheduler.

Owns: `Gate`, the contract. Never does: decide why a sequence waits. Called by: an engine core's sequences; an observer has one.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.api.messages import EngineRequest
from core.api.step_plan import SequenceKey


class Gate:
    """Sequences that have arrived and are not scheduled yet, owned by an observer. This base class keeps none.

    num_live: number of sequences here that will continue without a client's call, so that the engine has work.
    """

    @property
    def num_live(self) -> int:
        """Number of sequences here that will continue without a client's call."""
        return 0

    def hold(self, request: EngineRequest) -> bool:
        """Keep a sequence that has arrived; False: it need not wait here."""
        return False

    def await_one(self, seconds: float) -> None:
        """Wait until a live sequence may continue, at most `seconds`; return at once when there is none."""

    def take_live(self) -> list[EngineRequest]:
        """Return all live sequences and keep none of them."""
        return []

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop all choices of these requests; unknown ids are ignored."""

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Drop single choices; unknown ones are ignored."""
