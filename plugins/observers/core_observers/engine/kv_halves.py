"""Worker halves of KV connectors, connected to their halves in the scheduler.

Owns: `KVHalves`, an observer of the engine: which executor runs a worker half, and what its connector is told of the engine's
steps and memory. Never does: move a block. Called by: the engine core.
"""

from __future__ import annotations

from typing import Any, Final, Self

from core.api.errors import ConfigError
from core.engine.observer import Engine, EngineObserver, EngineStart
from core_kv_connectors.halves.connector import SplitConnector
from core_kv_connectors.halves.link import Link
from core_kv_connectors.halves.thread import HalfThread

RESET: Final = "reset_prefix_cache"
RESET_S: Final = 2.0
"""Seconds that a reset waits for blocks which a half moves: they would count as in use."""


class KVHalves(EngineObserver):
    """The connected halves of one engine."""

    order = 20  # before observers that may allocate blocks: a new pool first gets back those that a half still moves

    def __init__(self) -> None:
        self._halves: list[tuple[SplitConnector, HalfThread]] = []
        self._arenas: dict[HalfThread, int] = {}

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Return the observer of an engine with connectors."""
        return cls() if start.config.plugins.kv_connectors else None

    def attach(self, engine: Engine) -> None:
        """Keep the engine."""
        self._engine = engine

    def before_first(self) -> None:
        """Open the worker half of each connector that has one. Raises ConfigError, PluginError."""
        engine = self._engine
        names = engine.config.plugins.kv_connectors
        for name, connector in zip(names, engine.kv_services.connectors, strict=True):
            if not isinstance(connector, SplitConnector):
                continue
            open_half: Any = getattr(engine.executor, "open_kv_half", None)
            if open_half is None:
                raise ConfigError(
                    [
                        f"--kv-connectors {name}: it moves KV blocks itself, and this executor has no place for its worker "
                        "half; choose the one of one process (--distributed-executor-backend uni), or leave the connector out."
                    ]
                )
            half: HalfThread = open_half(name)
            half.wake = engine.kv_services.loads.news.set
            connector.connect(Link(half, engine.queue.copy, self._in_flight))
            connector.adopt(engine.scheduler.kv)
            self._halves.append((connector, half))
            self._arenas[half] = half.num_arenas

    def before_step(self) -> None:
        """Follow the engine to another pool or memory, before anything is planned."""
        self._follow()

    def calling(self, method: str) -> None:
        """Wait before a reset of the cache for blocks that a half moves, and follow changes of the memory afterwards."""
        if not method:
            self._follow()
        elif method == RESET:
            for connector, _ in self._halves:
                connector.settle(RESET_S)

    def _in_flight(self) -> tuple[int, int] | None:
        steps = self._engine.scheduler.in_flight
        return (steps[0].number, steps[-1].number) if steps else None

    def _follow(self) -> None:
        connectors = self._engine.kv_services.connectors
        for connector, half in self._halves:
            if self._arenas[half] != half.num_arenas:
                self._arenas[half] = half.num_arenas
                connector.drop_arena()
            connector.adopt(self._engine.scheduler.kv)
            if connector not in connectors:
                connector.leave()
