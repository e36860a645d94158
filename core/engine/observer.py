"""Parts that accompany an engine core, and what they see of it.

Owns: `EngineObserver`, the hooks that an engine core calls around its steps; `EngineStart`, which observers are made from;
`Engine`, the engine core as an observer sees it. Never does: name an observer.
Called by: `EngineCore` and its parts (call the hooks), the composition (builds observers), every observer.

An observer implements the hooks that it needs. A step costs nothing for those that it leaves alone. What a hook raises ends
the engine, so an observer catches what it can do without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from core.api.config import EngineConfig
from core.api.messages import EngineOutput, EngineRequest, SchedulerStats
from core.engine.executor import Executor
from core.engine.gate import Gate
from core.engine.sequences import Sequences
from core.engine.step_queue import StepQueue, Trace
from core.kv.connectors import KVConnectors
from core.scheduler.scheduler import Scheduler
from core.scheduler.step import Step


class Engine(Protocol):
    """An engine core as its observers see it.

    config:          one that has other weights replaces it.
    scheduler:       fields of its `lasting_stats` that are not the scheduler's own belong to the observers.
    has_news:        whether the next message is due although no request has work.
    is_halted:       whether no step is planned; requests that are there stay as they are.
    waiting_clients: clients, by number, whose calls halt the engine, so that the loop checks whether they still live.
    """

    config: EngineConfig
    executor: Executor
    scheduler: Scheduler
    queue: StepQueue
    sequences: Sequences
    kv_services: KVConnectors
    has_news: bool
    is_halted: bool
    waiting_clients: tuple[int, ...]

    def compute(self, request: EngineRequest) -> list[EngineOutput]:
        """Compute one request of the engine's own to its end, while there are no others; returns its outputs."""
        ...


@dataclass(frozen=True, slots=True)
class EngineStart:
    """What an observer is made from, before there is an executor.

    steps_file: descriptor of the file in which the engine notes its steps for its owner; None: nobody reads of them.
    """

    config: EngineConfig
    epoch: int = 0
    steps_file: int | None = None


class EngineObserver:
    """One part that accompanies an engine core. Every hook does nothing by default.

    order: observers are called by rising `order`, those with the same one by their names.
    gate:  sequences that it keeps back; None: it keeps none. Read once, after `attach`.
    trace: receives each step while it is computed; None: it needs none. The step queue takes the first one.
    """

    order: int = 100
    gate: Gate | None = None
    trace: Trace | None = None

    def configure(self, config: EngineConfig) -> EngineConfig:
        """The configuration to build executor and engine from, such as with the weights of an engine that died."""
        return config

    def attach(self, engine: Engine) -> None:
        """The engine is built. Called once, before every other hook but `configure`."""

    def before_first(self) -> None:
        """All observers are attached, and no request has come. A CoreError from here ends the start of the engine."""

    def before_step(self) -> None:
        """A step begins. Called for halted engines too."""

    def submitted(self, step: Step) -> None:
        """A step is about to be handed to the executor."""

    def finished(self, step: Step) -> None:
        """The scheduler has read the results of a step that computed something."""

    def idle(self) -> int | None:
        """Use a few milliseconds in which the engine has no work.

        Returns the milliseconds until the next such call if there is still no work; None: this observer has nothing left to
        do, and the next one gets the time.
        """
        return None

    def calling(self, method: str) -> None:
        """A utility is about to be called; `method` is empty: it has returned or raised."""

    def client_gone(self, client: int) -> None:
        """A client will not come back. client: its number."""

    def report(self, stats: SchedulerStats) -> None:
        """Add to a copy of the statistics."""

    def utilities(self, client: int) -> dict[str, Callable[..., Any]]:
        """Utilities by name, as one client calls them. client: its number."""
        return {}

    def close(self) -> None:
        """The engine ends: nobody waits for steps any more, and the executor is still there."""


ObserverFactory = Callable[[EngineStart], EngineObserver | None]
"""Makes an observer; None where the configuration asks for none."""


def hooks(observers: Sequence[EngineObserver], name: str) -> tuple[Callable[..., Any], ...]:
    """The hook called `name` of every observer that implements it."""
    default = getattr(EngineObserver, name)
    return tuple(getattr(observer, name) for observer in observers if getattr(type(observer), name) is not default)
