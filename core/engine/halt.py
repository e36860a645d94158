"""Why an engine computes nothing at the moment, and the requests that come meanwhile.

Owns: `Halt`, and what a change of the engine needs of it. Never does: schedule, or know what is changed. Called by: the
lifecycle; the engine core asks it in each step and hands it requests.

Halting is no more than not planning a step: requests that the scheduler has stay where they are, and those that come wait here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar, get_args

from core.api.config import EngineConfig
from core.api.errors import CoreError, UtilityError, nearest
from core.api.messages import EngineRequest
from core.api.step_plan import SequenceKey
from core.api.weights import PauseMode

MODES: Final[tuple[PauseMode, ...]] = get_args(PauseMode)

T = TypeVar("T")


class Halting(Protocol):
    """The engine core, as far as a change of it needs it."""

    def has_requests(self) -> bool:
        """Whether any request has not ended, besides those that came while the engine was halted."""
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
    """Of one engine.

    is_halted: whether no step is planned.
    holds:     whether requests that come wait here.
    arrivals:  those requests.
    reasons:   why, by name.
    """

    def __init__(self, core: Halting) -> None:
        self.is_halted = False
        self.holds = False
        self.arrivals: list[EngineRequest] = []
        self.reasons: set[str] = set()
        self._core = core
        self._drains = False

    def begin(self, why: str, mode: str) -> None:
        """Halt, or with the mode `wait` halt when those that run have ended. mode: see `Lifecycle.pause`."""
        self.halt([why])
        if mode == "abort":
            self._core.end_all()
        elif mode == "wait" and self._core.has_requests():
            self._drains = True
            self.is_halted = False

    def halt(self, reasons: Iterable[str]) -> None:
        """Be halted for these reasons, too, whatever runs."""
        self.reasons.update(reasons)
        self.holds = True
        if not self._drains:
            self.is_halted = True

    def release(self, why: str) -> None:
        """One reason less; without any, everybody goes on."""
        self.reasons.discard(why)
        if self.reasons:
            return
        self._drains = False
        self.is_halted = False
        self.holds = False
        self._core.add(self.take_arrivals())

    def drained(self) -> None:
        """The requests that a pause waited for may have ended."""
        if self._drains and not self._core.has_requests():
            self._drains = False
            self.is_halted = bool(self.reasons)

    def hold(self, request: EngineRequest) -> None:
        """Keep a request that has come until the engine goes on."""
        self.arrivals.append(request)

    def forget(self, request_ids: Iterable[str]) -> None:
        """All choices of these requests."""
        named = set(request_ids)
        self.arrivals = [request for request in self.arrivals if request.request_id not in named]

    def forget_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Single choices."""
        named = set(keys)
        self.arrivals = [request for request in self.arrivals if request.key not in named]

    def take_arrivals(self) -> list[EngineRequest]:
        """All that wait here, which do so no longer."""
        arrivals = self.arrivals
        self.arrivals = []
        return arrivals


def check_mode(mode: str) -> None:
    """Raises UtilityError for what says nothing about requests that are there."""
    if mode not in MODES:
        raise UtilityError(f"mode is {mode!r}; expected one of {', '.join(MODES)}.{nearest(str(mode), MODES)}")


def between_steps(core: Halting, call: Callable[[], T]) -> T:
    """Call the reloader. Raises UtilityError for what is wrong, or cannot be done."""
    try:
        return core.beside(call)
    except CoreError as error:
        raise UtilityError(str(error)) from error
    except OSError as error:
        raise UtilityError(f"It could not be done: {error.strerror or error}.") from error
