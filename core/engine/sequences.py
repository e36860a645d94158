"""Sequences of an engine core: at gates, in its scheduler, or ended before they began.

Owns: `Sequences`: adding sequences to the scheduler, and removing those that no step ends. Never does: plan or compute.
Called by: the engine core for its clients; observers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from core.api.errors import CoreError
from core.api.messages import EngineOutput, EngineRequest
from core.api.step_plan import SequenceKey
from core.engine.gate import Gate
from core.engine.step_runner import StepRunner
from core.plugin.table import PluginTable
from core.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

GATE_WAIT_S = 0.005
"""Seconds that a step without anything to compute waits for a sequence at a gate; messages wait as long."""


class Sequences:
    """The sequences of one scheduler. gates: tried in their order; the first one that keeps a sequence owns it."""

    def __init__(self, scheduler: Scheduler, runner: StepRunner, plugins: PluginTable) -> None:
        self.gates: list[Gate] = []
        self._scheduler = scheduler
        self._runner = runner
        self._plugins = plugins

    def add(self, requests: Iterable[EngineRequest], after: Gate | None = None) -> None:
        """Queue sequences, unless a gate keeps them. One that is refused gets an error output from the next step.

        after: the gate that they have passed; None: all gates are tried.
        """
        gates = self.gates if after is None else self.gates[self.gates.index(after) + 1 :]
        for request in requests:
            if not any(gate.hold(request) for gate in gates):
                self.schedule(request)

    def schedule(self, request: EngineRequest) -> None:
        """Add a sequence to the scheduler, past all gates."""
        try:
            # The policy is a plugin: whatever its order or queue raises ends this request only.
            self._scheduler.add(request)
        except Exception as error:
            logger.error("Request %r was refused.", request.request_id, exc_info=not isinstance(error, CoreError))
            reason = str(self._plugins.blamed(error))
            self.refuse(request.request_id, request.choice, request.handle, reason)

    def refuse(self, request_id: str, choice: int, handle: int, reason: str) -> None:
        """End a sequence that never started: the next step reports `reason` as its error."""
        output = EngineOutput(request_id, choice, 0, [], finish_reason="error", stop_reason=reason, handle=handle)
        self._runner.ended.append(output)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop all choices of these requests, without an output. Unknown ids are ignored."""
        # A list, because each gate and the scheduler iterate over it, and the caller may pass an iterator.
        request_ids = list(request_ids)
        for gate in self.gates:
            gate.abort(request_ids)
        self._runner.guard(lambda: self._scheduler.abort(request_ids))

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Drop single choices, without an output. Unknown keys are ignored."""
        keys = list(keys)
        for gate in self.gates:
            gate.abort_choices(keys)
        self._runner.guard(lambda: self._scheduler.abort_choices(keys))

    @property
    def at_gates(self) -> bool:
        """Whether a gate keeps sequences that will continue without a client's call."""
        return any(gate.num_live for gate in self.gates)

    @property
    def unfinished(self) -> bool:
        """Whether any sequence has not ended, except those that a gate keeps until a client's call."""
        return self._scheduler.has_unfinished() or self.at_gates

    @property
    def live(self) -> bool:
        """Whether any sequence may still get a token; others only wait for a step to report or drop them."""
        return self._scheduler.num_live > 0 or self.at_gates

    def await_gates(self) -> None:
        """Wait up to `GATE_WAIT_S` at each gate for a sequence that may continue."""
        for gate in self.gates:
            gate.await_one(GATE_WAIT_S)

    def end_all(self) -> None:
        """End all live sequences with finish reason `abort`, which the next step reports."""
        ended = self._runner.ended
        for gate in self.gates:
            for request in gate.take_live():
                ended.append(EngineOutput(*request.key, 0, [], finish_reason="abort", handle=request.handle))
        self.end_scheduled()

    def end_scheduled(self, adapter: str | None = None, sentence: str | None = None) -> None:
        """End the scheduler's sequences, as `Scheduler.end_all` does; the next step reports it."""
        outputs = self._runner.guard(lambda: self._scheduler.end_all(adapter, sentence))
        if outputs is not None:
            self._runner.ended += outputs

    def start_over(self) -> None:
        """Queue the scheduler's sequences again, with their tokens and an empty cache."""
        self._runner.start_over()
