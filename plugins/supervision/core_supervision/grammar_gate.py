"""The gate for requests whose grammar the executor is preparing.

Owns: `GrammarGate`, an observer of the engine and a gate: the thread that prepares grammars, and the sequences that wait for
it. Never does: prepare itself, or decide which sequence is computed. Called by: the engine core, between steps.

The first grammar of a backend takes as long as importing its library. The sequence waits for that, but no step does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Self

from core.api.messages import EngineRequest
from core.api.stats import SchedulerStats
from core.api.step_plan import SequenceKey
from core.api.structured_outputs import CompiledGrammar
from core.engine.executor import PreparingExecutor
from core.engine.gate import Gate
from core.engine.observer import Engine, EngineObserver, EngineStart

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class WaitingRequest:
    """A waiting sequence. prepared: done when its grammar is prepared."""

    request: EngineRequest
    prepared: Future[None]


class GrammarGate(EngineObserver, Gate):
    """The gate of one engine. It keeps no request when the executor does not prepare grammars."""

    order = 30

    _engine: Engine
    _executor: PreparingExecutor | None = None

    def __init__(self) -> None:
        self.gate = self
        self._held: list[WaitingRequest] = []
        self._preparing: dict[str, Future[None]] = {}
        self._thread: ThreadPoolExecutor | None = None

    @classmethod
    def open(cls, start: EngineStart) -> Self:
        """Make the gate, which every engine has."""
        return cls()

    def attach(self, engine: Engine) -> None:
        """Check whether the executor prepares grammars."""
        self._engine = engine
        self._executor = engine.executor if isinstance(engine.executor, PreparingExecutor) else None

    def before_step(self) -> None:
        """Schedule the sequences whose grammar is ready, and end those whose grammar failed."""
        if not self._held:
            return
        for request, error in self.release():
            if error is None:
                self._engine.sequences.add([request], after=self)
                continue
            assert request.grammar is not None
            name = request.grammar.backend
            logger.error("The grammar backend '%s' failed.", name, exc_info=error)
            reason = f"The grammar backend '{name}' failed ({type(error).__name__}: {error})."
            self._engine.sequences.refuse(request.request_id, request.choice, request.handle, reason)

    def report(self, stats: SchedulerStats) -> None:
        """Add the waiting sequences to the statistics."""
        if self._held:
            stats.num_waiting += len(self._held)
            stats.num_deferred += len(self._held)

    @property
    def num_live(self) -> int:
        """Number of waiting sequences."""
        return len(self._held)

    def hold(self, request: EngineRequest) -> bool:
        """Keep a sequence until its grammar is prepared; `release` returns it then. False: it need not wait."""
        grammar = request.grammar
        if grammar is None or self._executor is None or self._executor.is_prepared(grammar):
            return False
        prepared = self._preparing.get(grammar.key)
        if prepared is None:
            prepared = self._preparing[grammar.key] = self._submit(self._executor.prepare, grammar)
        self._held.append(WaitingRequest(request, prepared))
        return True

    def release(self) -> list[tuple[EngineRequest, BaseException | None]]:
        """Return the sequences that need not wait any more, in order of arrival, each with its error or None.

        A sequence whose deadline has passed is among them, without an error; the scheduler ends it.
        """
        now = time.monotonic()
        released: list[tuple[EngineRequest, BaseException | None]] = []
        kept: list[WaitingRequest] = []
        for held in self._held:
            if held.prepared.done():
                released.append((held.request, held.prepared.exception()))
            elif held.request.deadline and held.request.deadline <= now:
                released.append((held.request, None))
            else:
                kept.append(held)
        self._held = kept
        self._preparing = {key: future for key, future in self._preparing.items() if not future.done()}
        return released

    def await_one(self, seconds: float) -> None:
        """Wait until some sequence may continue, at most `seconds`."""
        if self._held:
            wait([held.prepared for held in self._held], timeout=seconds, return_when="FIRST_COMPLETED")

    def take_live(self) -> list[EngineRequest]:
        """Return all waiting sequences and keep none of them."""
        waiting = [held.request for held in self._held]
        self._held = []
        return waiting

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop all choices of these requests; unknown ids are ignored."""
        if self._held:
            named = set(request_ids)
            self._held = [held for held in self._held if held.request.request_id not in named]

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Drop single choices; unknown ones are ignored."""
        if self._held:
            named = set(keys)
            self._held = [held for held in self._held if (held.request.request_id, held.request.choice) not in named]

    def close(self) -> None:
        """Wait for the grammar that is being prepared; do not start others."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _submit(self, prepare: Callable[[CompiledGrammar], None], grammar: CompiledGrammar) -> Future[None]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "grammars")
        return self._thread.submit(prepare, grammar)
