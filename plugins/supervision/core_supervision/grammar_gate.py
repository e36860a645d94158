"""The gate for requests whose grammar the executor is preparing.

Owns: `GrammarGate`, an observer of the engine and a gate: the thread that prepares grammars, and the sequences that wait for
it. Never does: prepare itself, or decide which sequence is computed. Called by: the engine core, between steps.

The first grammar of a backend takes as long as importing its library. The sequence waits for that, but no step does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from core.api.messages import EngineRequest
from core.api.structured_outputs import CompiledGrammar
from core.engine.observer import Engine, EngineStart
from core_supervision.executor_parts import PreparingExecutor
from core_supervision.waiting_gate import WaitingGate

logger = logging.getLogger(__name__)


class GrammarGate(WaitingGate):
    """The gate of one engine. It keeps no request when the executor does not prepare grammars."""

    order = 30

    _executor: PreparingExecutor | None = None

    def __init__(self) -> None:
        super().__init__()
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
        if not self.held:
            return
        now = time.monotonic()
        held, self.held = self.held, []
        for request in held:
            grammar = request.grammar
            assert grammar is not None
            prepared = self._preparing[grammar.key]
            if not prepared.done() and not (request.deadline and request.deadline <= now):
                self.held.append(request)
                continue
            error = (
                prepared.exception() if prepared.done() else None
            )  # the scheduler ends one whose deadline has passed
            if error is None:
                self._engine.sequences.add([request], after=self)
                continue
            logger.error("The grammar backend '%s' failed.", grammar.backend, exc_info=error)
            self.refuse(request, f"The grammar backend '{grammar.backend}' failed ({type(error).__name__}: {error}).")
        needed = {request.grammar.key for request in self.held if request.grammar is not None}
        # A grammar that became ready since the look at its sequence is needed at the next one.
        self._preparing = {key: each for key, each in self._preparing.items() if key in needed or not each.done()}

    def hold(self, request: EngineRequest) -> bool:
        """Keep a sequence until its grammar is prepared; False: it need not wait."""
        grammar = request.grammar
        if grammar is None or self._executor is None or self._executor.is_prepared(grammar):
            return False
        if grammar.key not in self._preparing:
            self._preparing[grammar.key] = self._submit(self._executor.prepare, grammar)
        self.held.append(request)
        return True

    def awaited(self) -> Collection[Future[None]]:
        """Return the grammars that are being prepared."""
        return self._preparing.values()

    def close(self) -> None:
        """Wait for the grammar that is being prepared; do not start others."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _submit(self, prepare: Callable[[CompiledGrammar], None], grammar: CompiledGrammar) -> Future[None]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "grammars")
        return self._thread.submit(prepare, grammar)
