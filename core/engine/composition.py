"""Composition of an engine core with executor, KV connectors and observers, from its configuration.

Owns: `find_observers`, which reads the entry-point group of observers; `build_engine`, which puts executor, KV services and
observers around an engine core. Never does: step, or name an observer's class. Called by: the engine process, `InprocClient`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from core.api.config import EngineConfig
from core.api.errors import ConfigError, PluginError
from core.engine.core import EngineCore
from core.engine.executors import ExecutorFactory
from core.engine.observer import EngineObserver, EngineStart, ObserverFactory
from core.entry_points import named
from core.kv.connectors import KVConnectors
from core.plugin.discovery import entry_points_of

GROUP: Final = "core.engine_observers"
"""Entry points of this group are factories of observers (`ObserverFactory`)."""

NEEDED: Final[Mapping[str, str]] = MappingProxyType({
    "state_canary": "canary",
    "log_steps": "step_log",
    "audit": "audit",
    "sleeps": "lifecycle",
    "adapters": "adapters",
    "media": "media",
})  # fmt: skip
"""Fields of `EngineConfig` that an observer implements, with its name: without the observer such a setting is refused."""


def find_observers() -> dict[str, ObserverFactory]:
    """Return the factories of all installed observers, by name. Raises PluginError for one that cannot be imported."""
    factories: dict[str, ObserverFactory] = {}
    for offer, source in entry_points_of(GROUP):
        try:
            factories[offer.name] = named(offer.target)
        except Exception as error:
            raise PluginError(
                f"The engine observer '{offer.name}' of {source} cannot be imported ({type(error).__name__}: {error})."
            ) from error
    return factories


def build_engine(
    config: EngineConfig,
    make_executor: ExecutorFactory,
    factories: Mapping[str, ObserverFactory],
    *,
    epoch: int = 0,
    steps_file: int | None = None,
) -> EngineCore:
    """Build an engine core that is ready for its first request.

    factories:  factories of observers, by name.
    steps_file: see `EngineStart`.
    Raises ConfigError for a setting whose observer is not installed, and what executor, services and observers raise.
    """
    # Before the executor, which may load weights for minutes only to be refused.
    _check_needed(config, factories)
    observers = _open_observers(factories, EngineStart(config, epoch, steps_file))
    # Before the executor too: after a death, an observer replaces weights by those that the dead engine had.
    for observer in observers:
        config = observer.configure(config)
    executor = make_executor(config)
    services = KVConnectors.open(config, executor.numerics, executor.page_bytes, getattr(executor, "new_page", None))
    return EngineCore(config, executor, epoch, observers=observers, kv_services=services)


def _open_observers(factories: Mapping[str, ObserverFactory], start: EngineStart) -> list[EngineObserver]:
    """Build the observers that the configuration needs, in the order of their calls."""
    opened = [factories[name](start) for name in sorted(factories)]
    return sorted((each for each in opened if each is not None), key=lambda each: each.order)


def _check_needed(config: EngineConfig, factories: Mapping[str, ObserverFactory]) -> None:
    problems = [
        f"{field} is {getattr(config, field)!r}, and the engine observer '{name}' that serves it is not installed; install "
        "the distribution that offers it, or leave the setting out."
        for field, name in NEEDED.items()
        if getattr(config, field) and name not in factories
    ]
    if problems:
        raise ConfigError(problems)
