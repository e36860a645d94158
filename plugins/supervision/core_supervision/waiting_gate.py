"""Gates at which sequences wait for something that the engine makes for them, such as a grammar or an adapter.

Owns: `WaitingGate`, the sequences that wait, and what drops or counts them. Never does: make anything, or decide which sequence
may go on. Called by: the gates of grammars, media and adapters, which extend it; the engine core.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Future, wait
from typing import Any

from core.api.messages import EngineRequest
from core.api.stats import SchedulerStats
from core.api.step_plan import SequenceKey
from core.engine.gate import Gate
from core.engine.observer import Engine, EngineObserver


class WaitingGate(EngineObserver, Gate):
    """An observer and its gate, whose sequences go on by themselves.

    held: the sequences that wait, in order of arrival.
    """

    _engine: Engine

    def __init__(self) -> None:
        self.gate = self
        self.held: list[EngineRequest] = []

    def report(self, stats: SchedulerStats) -> None:
        """Add the waiting sequences to the statistics."""
        stats.num_waiting += len(self.held)
        stats.num_deferred += len(self.held)

    @property
    def num_live(self) -> int:
        """Number of waiting sequences."""
        return len(self.held)

    def awaited(self) -> Collection[Future[Any]]:
        """Return the work of which the first to end may let a sequence go on; by default none."""
        return ()

    def await_one(self, seconds: float) -> None:
        """Wait until some sequence may continue, at most `seconds`."""
        if self.held and (awaited := self.awaited()):
            wait(awaited, timeout=seconds, return_when="FIRST_COMPLETED")

    def take_live(self) -> list[EngineRequest]:
        """Return all waiting sequences and keep none of them."""
        taken = self.held
        self.drop(taken)
        return taken

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop all choices of these requests; unknown ids are ignored."""
        if self.held:
            named = set(request_ids)
            self.drop([request for request in self.held if request.request_id in named])

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Drop single choices; unknown ones are ignored."""
        if self.held:
            named = set(keys)
            self.drop([request for request in self.held if request.key in named])

    def drop(self, requests: Collection[EngineRequest]) -> None:
        """Keep these sequences no longer."""
        dropped = {request.key for request in requests}
        self.held = [request for request in self.held if request.key not in dropped]

    def refuse(self, request: EngineRequest, sentence: str) -> None:
        """End a sequence with an error."""
        self._engine.sequences.refuse(request.request_id, request.choice, request.handle, sentence)
