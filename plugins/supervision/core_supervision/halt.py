"""Whether an engine plans steps, and the requests that come while new ones have to wait.

Owns: `Halt`, the gate that follows the engine's state; `drop_cache` and `between_steps`, of which a change of the engine is
made. Never does: decide why or when to halt, or schedule. Called by: the lifecycle; the engine core hands it requests.

Halting is no more than not planning a step: requests that the scheduler has stay where they are, and those that come wait here.
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

MODES: Final[tuple[PauseMode, ...]] = get_args(PauseMode)

T = TypeVar("T")


class Halt(Gate):
    """What follows from the engine's state for its steps.

    holds:    whether requests that come wait here.
    arrivals: these requests; they wait for a call of a client, so that none counts as live.
    """

    def __init__(self, core: Engine) -> None:
        self.holds = False
        self.arrivals: list[EngineRequest] = []
        self._core = core

    def follow(self, state: EngineState) -> None:
        """The engine's state has changed."""
        self._core.is_halted = state.phase not in COMPUTING
        self.holds = state.phase != "running"
        if self.arrivals and not self.holds:
            self._core.sequences.add(self.take_arrivals())

    def hold(self, request: EngineRequest) -> bool:
        """Keep a request that has come until the engine goes on; False: it goes on."""
        if self.holds:
            self.arrivals.append(request)
        return self.holds

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop all choices of these requests."""
        named = set(request_ids)
        self.arrivals = [request for request in self.arrivals if request.request_id not in named]

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Drop single choices."""
        named = set(keys)
        self.arrivals = [request for request in self.arrivals if request.key not in named]

    def take_arrivals(self) -> list[EngineRequest]:
        """Return all requests that wait here; none does afterwards."""
        arrivals = self.arrivals
        self.arrivals = []
        return arrivals


def drop_cache(core: Engine, config: EngineConfig | None = None) -> None:
    """Have all requests start over with an empty cache.

    config: with new weights, whose keys and values are cached from now on; None: the weights are those of before.
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


def check_mode(mode: str) -> None:
    """Raise UtilityError for a mode that says nothing about requests that are there."""
    if mode not in MODES:
        raise UtilityError(f"mode is {mode!r}; expected one of {', '.join(MODES)}.{nearest(str(mode), MODES)}")


def between_steps(core: Engine, call: Callable[[], T]) -> T:
    """Call the reloader. Raises UtilityError for what is wrong, or cannot be done; EngineDeadError when nothing can go on."""
    try:
        return core.queue.beside(call)
    except EngineDeadError:
        raise
    except CoreError as error:
        raise UtilityError(str(error)) from error
    except OSError as error:
        raise UtilityError(f"It could not be done: {error.strerror or error}.") from error
