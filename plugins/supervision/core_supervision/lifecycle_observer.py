"""The observer that adds the lifecycle to an engine.

Owns: `LifecycleObserver`: the state taken over from the previous engine, and the events that reach the lifecycle.
Never does: pause, sleep or change weights (`core_supervision.lifecycle` does). Called by: the engine core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

import msgspec

from core.api.config import EngineConfig
from core.api.stats import SchedulerStats
from core.engine.observer import Engine, EngineObserver, EngineStart
from core_supervision import persistent_flags as lasting
from core_supervision.engine_state import EngineState
from core_supervision.lifecycle import Lifecycle
from core_supervision.state_keeper import StateStorage

RETRY_MS = 1000
"""Milliseconds between two attempts of an idle engine to write a late record."""


class LifecycleObserver(EngineObserver):
    """The lifecycle observer of one engine core. lifecycle: the lifecycle, after `attach`.

    before:  state of the previous engine when it died; None: there was none.
    storage: memory that the next engine reads; None: the file in the configuration.
    clock:   returns seconds since the epoch.
    """

    order = 20  # its gate comes before that of grammars, so that a halted engine prepares none

    lifecycle: Lifecycle
    _engine: Engine

    def __init__(
        self,
        before: EngineState | None,
        *,
        storage: StateStorage | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._before = before
        self._storage = storage
        self._clock = clock

    @classmethod
    def open(cls, start: EngineStart) -> Self:
        """Make the observer, with the state that the previous engine has left."""
        return cls(lasting.read(start.config.lasting_file))

    def configure(self, config: EngineConfig) -> EngineConfig:
        """Return the configuration with the weights of the previous engine."""
        if self._before is None:
            return config
        return msgspec.structs.replace(config, weights=self._before.weights)

    def attach(self, engine: Engine) -> None:
        """Make the lifecycle and its gate."""
        self._engine = engine
        self.lifecycle = Lifecycle(engine, engine.config, engine.executor, storage=self._storage, clock=self._clock)
        self.gate = self.lifecycle.halt

    def before_first(self) -> None:
        """Pause and sleep as the previous engine did when it died."""
        if self._before is not None:
            self.lifecycle.go_on_as(self._before)

    def before_step(self) -> None:
        """Check calls that wait for requests to end, the record and tensors to free, when the state has changed since the last
        step or its record is late."""
        if self._engine.has_news or not self.lifecycle.keeper.is_recorded:
            self.lifecycle.note_drained()
            self.lifecycle.catch_up()

    def idle(self) -> int | None:
        """Write a late record; as long as there is no memory for it, nothing else uses the idle time."""
        return None if self.lifecycle.catch_up() else RETRY_MS

    def client_gone(self, client: int) -> None:
        """End the waiting calls of a client."""
        self.lifecycle.client_gone(client)

    def report(self, stats: SchedulerStats) -> None:
        """Add the requests that wait for the engine to continue to the statistics."""
        arrivals = self.lifecycle.halt.arrivals
        if arrivals:
            stats.num_waiting += len(arrivals)
            stats.num_deferred += len(arrivals)

    def utilities(self, client: int) -> dict[str, Callable[..., Any]]:
        """Return the calls by which clients pause the engine, put it to sleep and change its weights."""
        return self.lifecycle.utilities(client)
