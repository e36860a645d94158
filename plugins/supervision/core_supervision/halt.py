"""The halt of an engine, and the gate for requests that arrive meanwhile.

Owns: `Halt`, the gate that follows the engine's state; `save_cache`, `drop_cache` and `between_steps`, the parts of a change.
Never does: decide why or when to halt, or schedule. Called by: the lifecycle; the engine core, with new requests.

A halted engine merely plans no step: those in flight end and their tokens are delivered, requests in the scheduler stay where
they are, and new ones wait here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar, get_args

from core.api.config import EngineConfig
from core.api.errors import CoreError, EngineDeadError, UtilityError, nearest
from core.api.messages import EngineRequest
from core.api.step_plan import SequenceKey
from core.api.weights import PauseMode
from core.engine.gate import Gate
from core.engine.observer import Engine
from core_supervision.engine_state import COMPUTING, EngineState

SAVE_S: Final = 10.0
"""Limit in seconds of saving cached blocks before a sleep, for each place that they are saved to."""

MODES: Final[tuple[PauseMode, ...]] = get_args(PauseMode)

T = TypeVar("T")


class Halt(Gate):
    """The gate of one lifecycle, which makes steps and new requests follow the engine's state.

    holds:    whether new requests wait here.
    arrivals: these requests; they wait for a call of a client, so that none counts as live.
    """

    def __init__(self, core: Engine) -> None:
        self.holds = False
        self.arrivals: list[EngineRequest] = []
        self._core = core

    def follow(self, state: EngineState) -> None:
        """Apply a change of the engine's state; requests that need not wait any more are added."""
        self._core.is_halted = state.phase not in COMPUTING
        self.holds = state.phase != "running"
        if self.arrivals and not self.holds:
            self._core.sequences.add(self.take_arrivals())

    def hold(self, request: EngineRequest) -> bool:
        """Keep a new request until the engine continues; False: it need not wait."""
        if self.holds:
            self.arrivals.append(request)
        return self.holds

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop all choices of these requests."""
        named = set(request_ids)
        self.arrivals = [request for request in self.arrivals if request.request_id not in named]

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Drop single choices; unknown ones are ignored."""
        named = set(keys)
        self.arrivals = [request for request in self.arrivals if request.key not in named]

    def take_arrivals(self) -> list[EngineRequest]:
        """Return all waiting requests and keep none of them."""
        arrivals = self.arrivals
        self.arrivals = []
        return arrivals


def drop_cache(core: Engine, config: EngineConfig | None = None) -> None:
    """Make all requests start over with an empty cache.

    config: configuration with new weights, whose keys and values are cached from now on; None: the weights are unchanged.
    Raises EngineDeadError when that fails: cached keys and values would be those of other weights, or of no memory.
    """
    try:
        if config is not None:
            core.config = config
            core.kv_services.use_weights(config, core.executor.numerics, core.executor.page_bytes)
        core.sequences.start_over()
    except EngineDeadError:
        raise
    except Exception as error:
        raise EngineDeadError(
            f"Cached keys and values could not be dropped after a change of the engine ({type(error).__name__}: {error})."
        ) from error


def save_cache(core: Engine, *, keeps_memory: bool) -> None:
    """Hand the cached blocks to the KV connectors before the memory is given back.

    Steps in flight count as never computed, and their sequences wait again: all of them start over after the sleep anyway.
    keeps_memory: whether connectors keep their pages in host memory.
    """
    scheduler = core.scheduler
    if scheduler.in_flight:
        core.queue.give_up()
        scheduler.give_up()
    scheduler.kv.register_starting()
    core.kv_services.notify("save_for_sleep", scheduler.kv, core.queue.copy, SAVE_S, keeps_memory=keeps_memory)


def check_mode(mode: str) -> None:
    """Raise UtilityError for an unknown mode of handling present requests."""
    if mode not in MODES:
        raise UtilityError(f"mode is {mode!r}; expected one of {', '.join(MODES)}.{nearest(str(mode), MODES)}")


def between_steps(core: Engine, call: Callable[[], T]) -> T:
    """Call the reloader between two steps; returns its result.

    Raises UtilityError when the call is wrong or fails, EngineDeadError when the engine cannot continue.
    """
    try:
        return core.queue.beside(call)
    except EngineDeadError:
        raise
    except CoreError as error:
        raise UtilityError(str(error)) from error
    except OSError as error:
        raise UtilityError(f"It could not be done: {error.strerror or error}.") from error
