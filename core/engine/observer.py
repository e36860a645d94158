"""Observers of an engine core, and the part of the core that they may use.

Owns: `EngineObserver`, the hooks that an engine core calls around its steps; `EngineStart`, from which observers are made;
`Engine`, the engine core as an observer sees it. Never does: name an observer.
Called by: `EngineCore` and its parts (call the hooks), the composition (builds observers), every observer.

An observer implements the hooks that it needs; the others cost nothing in a step. An exception of a hook ends the engine, so
an observer catches errors that it can tolerate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from core.api.config import EngineConfig
from core.api.messages import EngineOutput, EngineRequest
from core.api.stats import SchedulerStats
from core.engine.executor import Executor
from core.engine.gate import Gate
from core.engine.sequences import Sequences
from core.engine.step_queue import StepQueue, Trace
from core.kv.connectors import KVConnectors
from core.scheduler.scheduler import Scheduler
from core.scheduler.step import Step


class Engine(Protocol):
    """An engine core as its observers see it.

    config:          the configuration; replaced when the engine gets other weights.
    scheduler:       fields of its `live_stats` that are not the scheduler's own belong to the observers.
    has_news:        whether a message must be sent although no request has work.
    is_halted:       whether no step is planned. Those in flight end; requests stay as they are.
    waiting_clients: numbers of clients whose calls halt the engine, so that the loop checks whether they still exist.
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
        """Compute an internal request to its end, while there are no others; returns its outputs."""
        ...


@dataclass(frozen=True, slots=True)
class EngineStart:
    """The arguments from which an observer is made, before there is an executor.

    steps_file: descriptor of the file in which the engine records its steps for its owner; None: no owner reads them.
    """

    config: EngineConfig
    epoch: int = 0
    steps_file: int | None = None


class EngineObserver:
    """An optional part that accompanies an engine core, which calls its hooks. Every hook does nothing by default.

    order: observers are called in ascending `order`, those with equal `order` by name.
    gate:  the gate at which it keeps sequences back; None: it has none. Read once, after `attach`.
    trace: receives each step while it is computed; None: not needed. The step queue uses the first one.
    """

    order: int = 100
    gate: Gate | None = None
    trace: Trace | None = None

    def configure(self, config: EngineConfig) -> EngineConfig:
        """Return the configuration from which to build executor and engine, for example with the weights of a dead engine."""
        return config

    def attach(self, engine: Engine) -> None:
        """Keep the built engine. Called once, before every other hook except `configure`."""

    def before_first(self) -> None:
        """Act after all observers are attached and before the first request. A CoreError ends the start of the engine."""

    def before_step(self) -> None:
        """Act before a step. Called for halted engines too."""

    def submitted(self, step: Step) -> None:
        """Act before a step is passed to the executor."""

    def finished(self, step: Step) -> None:
        """Act after the scheduler has read the results of a step that computed something."""

    def idle(self) -> int | None:
        """Use a few milliseconds in which the engine has no work.

        Returns the milliseconds until the next such call if there is still no work; None: this observer has nothing left to
        do, and the next one gets the time.
        """
        return None

    def calling(self, method: str) -> None:
        """Act before a utility is called, and, with an empty `method`, after it has returned or raised."""

    def client_gone(self, client: int) -> None:
        """Act after a client is gone. client: its number."""

    def report(self, stats: SchedulerStats) -> None:
        """Add counters to a copy of the statistics."""

    def utilities(self, client: int) -> dict[str, Callable[..., Any]]:
        """Return the utilities, by name, for the calls of one client. client: its number."""
        return {}

    def close(self) -> None:
        """Finish: the engine ends, no step is needed any more, and the executor is still open."""


ObserverFactory = Callable[[EngineStart], EngineObserver | None]
"""Function that makes an observer, or returns None when the configuration does not need it."""


def hooks(observers: Sequence[EngineObserver], name: str) -> tuple[Callable[..., Any], ...]:
    """Return the hook called `name` of every observer that implements it."""
    default = getattr(EngineObserver, name)
    # Resolved once, so that a step makes no call for hooks that are left alone.
    return tuple(getattr(observer, name) for observer in observers if getattr(type(observer), name) is not default)
