"""The state canary as an observer of an engine.

Owns: `CanaryObserver`: when the canary compares which part. Never does: compare (`core_observers.engine.canary` does).
Called by: the engine core.
"""

from __future__ import annotations

from typing import Self

from core.engine.observer import Engine, EngineObserver, EngineStart
from core_observers.engine.canary import Canary


class CanaryObserver(EngineObserver):
    """The observer that compares before the first request, and the rest in idle time."""

    order = 10  # the probe must be computed before the lifecycle observer puts the engine back to sleep

    _engine: Engine
    _canary: Canary | None = None

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Return the canary, if `--state-canary` is given."""
        return None if start.config.state_canary is None else cls()

    def attach(self, engine: Engine) -> None:
        """Store the engine that computes the probe."""
        self._engine = engine

    def before_first(self) -> None:
        """Run the comparisons before the first request.

        Raises StateError, UserError for a directory that cannot be used.
        """
        engine = self._engine
        self._canary = Canary.open(engine.config, engine.executor)
        if self._canary is not None:
            self._canary.check(engine.compute, engine.config)

    def idle(self) -> int | None:
        """Compare a little more. Raises StateError for damage."""
        if self._canary is None or not self._canary.is_pending:
            return None
        self._canary.go_on()
        return 0
