"""Whether an engine plans steps, and the requests that come while new ones have to wait.

Owns: `Halt`, which follows the engine's state, and what a change of the engine needs of its core. Never does: decide why or
when to halt, or schedule. Called by: the lifecycle; the engine core asks it in each step and hands it requests.

Halting is no more than not planning a step: requests that the scheduler has stay where they are, and those that come wait here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar, get_args

from core.api.config import EngineConfig
from core.api.errors import CoreError, EngineDeadError, UtilityError, nearest
from core.api.messages import EngineRequest
from core.api.step_plan import SequenceKey
from core.api.weights import PauseMode
from core.engine.engine_state import COMPUTING, EngineState

MODES: Final[tuple[PauseMode, ...]] = get_args(PauseMode)

T = TypeVar("T")


class Halting(Protocol):
    """The engine core, as far as a change of it needs it."""

    def has_requests(self) -> bool:
        """Whether any request has not ended, besides those that came while new requests wait."""
        ...

    def has_live_requests(self) -> bool:
        """Whether any of them may still get a token; the others only wait for a step to report or to forget them."""
        ...

    def end_all(self) -> None:
        """End these requests with finish reason `abort`."""
        ...

    def start_over(self) -> None:
        """Have these requests wait again, with an empty cache."""
        ...

    def drop_host_pages(self) -> None:
        """Forget what host memory has of the cache."""
        ...

    def use_weights(self, config: EngineConfig) -> None:
        """From now on cached keys and values are those of the weights of `config`."""
        ...

    def beside(self, call: Callable[[], T]) -> T:
        """Call something between two steps, in the thread that computes them."""
        ...

    def add(self, requests: Iterable[EngineRequest]) -> None:
        """Take requests."""
        ...


class Halt:
    """What follows from the engine's state for its steps.

    is_halted: whether no step is planned.
    holds:     whether requests that come wait here.
    arrivals:  these requests.
    """

    def __init__(self, core: Halting) -> None:
        self.is_halted = False
        self.holds = False
        self.arrivals: list[EngineRequest] = []
        self._core = core

    def follow(self, state: EngineState) -> None:
        """The engine's state has changed."""
        self.is_halted = state.phase not in COMPUTING
        self.holds = state.phase != "running"
        if self.arrivals and not self.holds:
            self._core.add(self.take_arrivals())

    def hold(self, request: EngineRequest) -> None:
        """Keep a request that has come until the engine goes on."""
        self.arrivals.append(request)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop all choices of these requests."""
        named = set(request_ids)
        self.arrivals = [request for request in self.arrivals if request.request_id not in named]

    def forget_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Drop single choices."""
        named = set(keys)
        self.arrivals = [request for request in self.arrivals if request.key not in named]

    def take_arrivals(self) -> list[EngineRequest]:
        """Return all requests that wait here; none does afterwards."""
        arrivals = self.arrivals
        self.arrivals = []
        return arrivals


def drop_cache(core: Halting, config: EngineConfig | None = None) -> None:
    """Have all requests start over with an empty cache.

    config: with new weights, whose keys and values are cached from now on; None: the weights are those of before.
    Raises EngineDeadError when that fails: cached keys and values would be those of other weights, or of no memory.
    """
    try:
        if config is not None:
            core.use_weights(config)
        core.start_over()
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


def between_steps(core: Halting, call: Callable[[], T]) -> T:
    """Call the reloader. Raises UtilityError for what is wrong, or cannot be done; EngineDeadError when nothing can go on."""
    try:
        return core.beside(call)
    except EngineDeadError:
        raise
    except CoreError as error:
        raise UtilityError(str(error)) from error
    except OSError as error:
        raise UtilityError(f"It could not be done: {error.strerror or error}.") from error
