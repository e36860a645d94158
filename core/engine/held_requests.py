"""Requests whose grammar the executor is preparing.

Owns: `HeldRequests`: the thread that prepares, and the sequences that wait for it. Never does: schedule, or prepare itself.
Called by: the engine core, between steps.

The first grammar of a backend takes as long as importing its library. The sequence waits for it, and no step does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from core.api.messages import EngineRequest
from core.api.step_plan import SequenceKey
from core.api.structured_outputs import CompiledGrammar
from core.engine.executor import Executor, PreparingExecutor


@dataclass(slots=True)
class Held:
    """A sequence that waits. prepared: done when its grammar is."""

    request: EngineRequest
    prepared: Future[None]


class HeldRequests:
    """executor: one that does not prepare grammars holds no request."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor if isinstance(executor, PreparingExecutor) else None
        self._held: list[Held] = []
        self._preparing: dict[str, Future[None]] = {}
        self._thread: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, request: EngineRequest) -> bool:
        """Whether the sequence has to wait; it comes back from `release` then."""
        grammar = request.grammar
        if grammar is None or self._executor is None or self._executor.is_prepared(grammar):
            return False
        prepared = self._preparing.get(grammar.key)
        if prepared is None:
            prepared = self._preparing[grammar.key] = self._submit(self._executor.prepare, grammar)
        self._held.append(Held(request, prepared))
        return True

    def release(self) -> list[tuple[EngineRequest, BaseException | None]]:
        """The sequences that need not wait any more, in the order in which they came, each with what went wrong.

        A sequence whose deadline has passed is among them.
        """
        now = time.monotonic()
        released: list[tuple[EngineRequest, BaseException | None]] = []
        kept: list[Held] = []
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
        """Wait until some sequence may go on, for a while."""
        wait([held.prepared for held in self._held], timeout=seconds, return_when="FIRST_COMPLETED")

    def take_all(self) -> list[EngineRequest]:
        """All that wait, which do so no longer."""
        waiting = [held.request for held in self._held]
        self._held = []
        return waiting

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget all choices of these requests."""
        if self._held:
            named = set(request_ids)
            self._held = [held for held in self._held if held.request.request_id not in named]

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Forget single choices."""
        if self._held:
            named = set(keys)
            self._held = [held for held in self._held if (held.request.request_id, held.request.choice) not in named]

    def close(self) -> None:
        """Wait for the grammar that is being prepared; others are not begun."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _submit(self, prepare: Callable[[CompiledGrammar], None], grammar: CompiledGrammar) -> Future[None]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "grammars")
        return self._thread.submit(prepare, grammar)
