"""A place in front of the scheduler where sequences wait.

Owns: `Gate`, the contract. Never does: decide why a sequence waits. Called by: an engine core's sequences; an observer has one.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.api.messages import EngineRequest
from core.api.step_plan import SequenceKey


class Gate:
    """Sequences that have come and are not scheduled yet. This one keeps none.

    num_live: sequences here that go on by themselves, so that the engine has work. Sequences that wait for a call of a
              client are not counted.
    """

    @property
    def num_live(self) -> int:
        """As above."""
        return 0

    def hold(self, request: EngineRequest) -> bool:
        """Keep a sequence that has come; False: it need not wait here."""
        return False

    def await_one(self, seconds: float) -> None:
        """Wait until a live sequence may go on, at most `seconds`; return at once when there is none."""

    def take_live(self) -> list[EngineRequest]:
        """Hand over all live sequences; the gate has none afterwards."""
        return []

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget all choices of these requests; unknown ids are ignored."""

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Forget single choices; unknown ones are ignored."""
