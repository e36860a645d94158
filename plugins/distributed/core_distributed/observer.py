"""Observer that ends an engine whose rank has ended, also while no step is computed.

Owns: `RanksObserver`. Never does: end a rank. Called by: the engine core.
"""

from __future__ import annotations

from typing import Any, Final, Self

from core.engine.observer import Engine, EngineObserver, EngineStart

OF_RANKS: Final = ("mp", "ray")
"""Executors with several ranks."""
LOOK_MS: Final = 250
"""Milliseconds between two looks at the other ranks while there is no work."""


class RanksObserver(EngineObserver):
    """Looks at the ranks before steps and in idle time."""

    # Last: the other observers have nothing to do for most of the time, and this one always has.
    order = 1000

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Make the observer; None for an engine with one rank."""
        return cls() if start.config.plugins.executor in OF_RANKS else None

    def attach(self, engine: Engine) -> None:
        """Keep the executor, and the numbers that clients get."""
        self._executor: Any = engine.executor
        self._engine = engine
        self._scheduler = engine.scheduler

    def before_step(self) -> None:
        """Raise EngineDeadError if a rank has ended."""
        self._look()
        balance = getattr(self._executor, "balance", None)
        if balance is not None:
            stats = self._scheduler.live_stats
            stats.expert_balance, stats.expert_moves = balance.value, balance.num_moves

    def idle(self) -> int | None:
        """Raise EngineDeadError if a rank has ended; look again after `LOOK_MS`.

        Steps tell the other ranks of adapters that rank 0 reads; without steps this does.
        """
        self._look()
        if getattr(self._executor, "has_untold", False):
            self._engine.queue.beside(self._executor.tell_adapters)
        return LOOK_MS

    def _look(self) -> None:
        check = getattr(self._executor, "check", None)
        if check is not None:
            check()
