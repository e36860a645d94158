"""What an engine does besides steps: it pauses, sleeps and takes new weights.

Owns: `Lifecycle`: why nothing is computed at the moment, who came meanwhile, and the order of each change. Never does:
schedule, or touch a weight (the executor's reloader does). Called by: the engine core, for its utilities and for requests
that come.

While the engine is halted, requests that come wait here. Those that the scheduler has stay where they are: halting is no more
than not planning a step. A change that takes the cache away has all of them start over, with the tokens that they have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar, get_args

import msgspec

from core.api.config import EngineConfig
from core.api.decoding import UNREADABLE
from core.api.errors import CoreError, UtilityError, nearest
from core.api.messages import EngineRequest
from core.api.step_plan import SequenceKey
from core.api.weights import MemoryPart, PauseMode, Version, WeightSource, WeightsState, WeightUpdate
from core.engine import lasting
from core.engine.executor import Executor, Reloader, ReloadingExecutor
from core.engine.lasting import Lasting

logger = logging.getLogger(__name__)

PARTS: Final[tuple[MemoryPart, ...]] = get_args(MemoryPart)
MODES: Final[tuple[PauseMode, ...]] = get_args(PauseMode)
LEVELS: Final = (1, 2)

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


class Lifecycle:
    """Of one engine.

    is_halted: whether no step is planned.
    holds:     whether requests that come wait here.
    arrivals:  those requests.
    has_news:  whether clients are to hear of a change.
    """

    def __init__(self, core: Halting, config: EngineConfig, executor: Executor) -> None:
        self.is_halted = False
        self.holds = False
        self.arrivals: list[EngineRequest] = []
        self.has_news = False
        self.level = 0
        self._core = core
        self._config = config
        self._reloader: Reloader | None = executor.reloader if isinstance(executor, ReloadingExecutor) else None
        self._missing: set[MemoryPart] = set()
        self._halted_by: set[str] = set()
        self._drains = False
        self._staged: list[WeightSource] | None = None

    @property
    def weights(self) -> WeightsState:
        """What the weights are made of."""
        return self._config.weights if self._reloader is None else self._reloader.state

    @property
    def is_paused(self) -> bool:
        """Whether requests wait because somebody asked for that."""
        return "pause" in self._halted_by

    def go_on_as(self, before: Lasting) -> None:
        """Sleep and pause as the engine before this one did when it died."""
        if not before.halted_by:
            return
        self._halt(*before.halted_by)
        if before.sleep_level:
            self._sleep(before.sleep_level)
            woken = [part for part in PARTS if part not in before.missing]
            self._wake(woken)
        self._settle()

    def tell_again(self) -> None:
        """Somebody has come who does not know of earlier changes, if there were any."""
        if self._halted_by or self.weights.version:
            self.has_news = True

    def utilities(self) -> dict[str, Callable[..., Any]]:
        """What clients may call, by name."""
        return {
            "lifecycle": self.state,
            "pause": self.pause,
            "resume": self.resume,
            "sleep": self.sleep,
            "wake_up": self.wake_up,
            "update_weights": self.update_weights,
            "start_weight_update": self.start_weight_update,
            "finish_weight_update": self.finish_weight_update,
            "reload_weights": self.reload_weights,
        }

    def state(self) -> dict[str, Any]:
        """As plain values.

        is_halted:      nothing is computed, and nothing will be until a further call. While a pause waits for requests that
                        run, it is false.
        is_paused, is_sleeping, sleep_level, weight_version: see the calls.
        """
        self.drained()
        return {
            "is_halted": self.is_halted,
            "is_paused": self.is_paused,
            "is_sleeping": self.level > 0,
            "sleep_level": self.level,
            "missing": sorted(self._missing),
            "weight_version": self.weights.version,
        }

    def drained(self) -> None:
        """The requests that a pause waited for may have ended."""
        if self._drains and not self._core.has_requests():
            self._drains = False
            self.is_halted = bool(self._halted_by)

    def pause(self, mode: str = "abort", clear_cache: bool = True) -> dict[str, Any]:
        """Compute nothing until `resume`; requests that come wait.

        mode: what becomes of those that are there: `abort` ends them, `keep` has them go on later, `wait` has them end
        first: then the state says `is_halted` once they have.
        clear_cache: whether cached prefixes are forgotten; with `wait`, by the caller, once they have ended.
        """
        self._check_mode(mode)
        self._begin("pause", mode)
        if clear_cache and self.is_halted:
            self._core.start_over()
        return self.state()

    def resume(self) -> dict[str, Any]:
        """End a pause. An engine that sleeps goes on sleeping."""
        self._release("pause")
        return self.state()

    def sleep(self, level: int = 1, mode: str = "keep") -> dict[str, Any]:
        """Give the memory of weights and cache back until `wake_up`; requests that come wait.

        level: 1: the weights are written to a file first, 2: they are read from the checkpoint again.
        mode: as of `pause`; `wait` only once it has waited.
        """
        if self._reloader is None or not self._config.sleeps:
            raise UtilityError("This engine does not sleep; start it with --enable-sleep-mode.")
        if level not in LEVELS or isinstance(level, bool):
            raise UtilityError(f"sleep level is {level!r}; expected 1 or 2. To compute nothing for a while, pause.")
        self._check_mode(mode)
        if self.level:
            return self.state()
        self._begin("sleep", mode)
        if not self.is_halted:
            self._release("sleep")
            raise UtilityError("Requests still run; pause with mode `wait` and sleep when they have ended.")
        self._sleep(level)
        self._settle()
        return self.state()

    def wake_up(self, tags: Sequence[str] | None = None) -> dict[str, Any]:
        """Bring memory back, all of it or that which the tags name: `weights`, `kv_cache`. Computes once all is there."""
        wanted: list[MemoryPart] = []
        for part in PARTS if tags is None else tags:
            if part not in PARTS:
                raise UtilityError(f"tag {part!r} is unknown; expected weights or kv_cache.{nearest(str(part), PARTS)}")
            wanted.append(part)
        if self.level:
            self._wake(wanted)
            self._settle()
        return self.state()

    def update_weights(self, update: dict[str, Any], mode: str = "keep") -> dict[str, Any]:
        """Take new weights, at once, or with others when an update was begun.

        update: of the fields of `WeightUpdate`.
        mode: as of `pause`, for requests that are there; those that go on do so with the new weights.
        Raises UtilityError when they do not fit; then nothing has changed.
        """
        reloader = self._updating()
        self._check_mode(mode)
        asked = _as_update(update)
        source = self._try(lambda: reloader.stage(asked))
        if self._staged is not None:
            if asked.weight_version is not None:
                self._discard([source])
                raise UtilityError("weight update: name the version when you finish it.")
            self._staged.append(source)
            return self.state()
        try:
            self._take([source], asked.weight_version, mode)
        except BaseException:
            self._discard([source])
            raise
        return self.state()

    def start_weight_update(self) -> dict[str, Any]:
        """Begin to gather updates, which `finish_weight_update` applies together. One that was begun before is dropped."""
        self._updating()
        self._discard(self._staged or ())
        self._staged = []
        return self.state()

    def finish_weight_update(self, weight_version: str | None = None, mode: str = "keep") -> dict[str, Any]:
        """Apply what was gathered."""
        self._updating()
        self._check_mode(mode)
        staged = self._staged
        if not staged:
            raise UtilityError("There is no weight update to finish; start one, and send tensors.")
        version = _as_version(weight_version)
        self._staged = None
        try:
            self._take(staged, version, mode)
        except BaseException:
            self._discard(staged)
            raise
        return self.state()

    def reload_weights(self) -> dict[str, Any]:
        """Read the weights again, as their files are now."""
        reloader = self._updating()
        self._begin("update", "keep")
        try:
            self._change(lambda: self._try(reloader.reload))
        finally:
            self._release("update")
        return self.state()

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

    def _begin(self, why: str, mode: str) -> None:
        """Halt, or with `wait` halt when those that run have ended."""
        self._halt(why)
        if mode == "abort":
            self._core.end_all()
        elif mode == "wait" and self._core.has_requests():
            self._drains = True
            self.is_halted = False
        self._settle()

    def _halt(self, *reasons: str) -> None:
        self._halted_by.update(reasons)
        self.holds = True
        if not self._drains:
            self.is_halted = True

    def _release(self, why: str) -> None:
        """One reason less; without any, everybody goes on."""
        self._halted_by.discard(why)
        if not self._halted_by:
            self._drains = False
            self.is_halted = False
            self.holds = False
            self._core.add(self.take_arrivals())
        self._settle()

    def _sleep(self, level: int) -> None:
        assert self._reloader is not None
        reloader = self._reloader
        try:
            self._try(lambda: reloader.release(level))
        except BaseException:
            self._release("sleep")
            raise
        self.level = level
        self._missing = set(PARTS)
        self._core.start_over()
        self._core.drop_host_pages()

    def _wake(self, parts: Sequence[MemoryPart]) -> None:
        assert self._reloader is not None
        reloader = self._reloader
        self._try(lambda: reloader.restore(parts))
        self._missing -= set(parts)
        if not self._missing:
            self.level = 0
            self._release("sleep")

    def _take(self, staged: Sequence[WeightSource], version: str | None, mode: str) -> None:
        """Apply staged sources."""
        assert self._reloader is not None
        reloader = self._reloader
        if mode == "wait" and self._core.has_requests():
            raise UtilityError("Requests still run; pause with mode `wait` and update when they have ended.")
        self._begin("update", mode)
        try:
            self._change(lambda: self._try(lambda: reloader.apply(staged, version)))
        finally:
            self._release("update")

    def _change(self, change: Callable[[], None]) -> None:
        """Replace the weights, and forget what was computed with those before."""
        change()
        weights = self.weights
        self._config = msgspec.structs.replace(self._config, weights=weights)
        self._core.use_weights(self._config)
        self._core.start_over()
        logger.info("The weights are of version %s now.", weights.version)

    def _updating(self) -> Reloader:
        """The reloader. Raises UtilityError where weights cannot be replaced."""
        config = self._config
        if self._reloader is None:
            raise UtilityError("The executor of this engine does not replace weights.")
        for value, flag in ((config.state_canary, "--state-canary"), (config.keep_weights, "--keep-weights")):
            if value is not None:
                raise UtilityError(f"Weights cannot be replaced with {flag}, which holds on to those of the start.")
        return self._reloader

    def _discard(self, staged: Iterable[WeightSource]) -> None:
        if self._reloader is not None:
            for source in staged:
                self._reloader.discard(source)

    def _try(self, call: Callable[[], T]) -> T:
        """Call the reloader between two steps. Raises UtilityError for what is wrong, or cannot be done."""
        try:
            return self._core.beside(call)
        except CoreError as error:
            raise UtilityError(str(error)) from error
        except OSError as error:
            raise UtilityError(f"It could not be done: {error.strerror or error}.") from error

    def _check_mode(self, mode: str) -> None:
        if mode not in MODES:
            raise UtilityError(f"mode is {mode!r}; expected one of {', '.join(MODES)}.{nearest(str(mode), MODES)}")

    def _settle(self) -> None:
        """Leave a record of what is now, and have clients told."""
        self.has_news = True
        record = Lasting(
            weights=self.weights,
            sleep_level=self.level,
            missing=tuple(sorted(self._missing)),
            halted_by=tuple(sorted(self._halted_by - {"update"})),
        )
        try:
            lasting.write(self._config.lasting_file, record)
        except OSError as error:
            logger.error("The next engine will not know of this: %s.", error.strerror)


def _as_version(given: object) -> str | None:
    """Raises UtilityError for what cannot stand in a header."""
    try:
        return msgspec.convert(given, Version | None)
    except UNREADABLE as error:
        raise UtilityError(f"weight_version {given!r}: {error}.") from error


def _as_update(given: dict[str, Any]) -> WeightUpdate:
    """Raises UtilityError naming a wrong field."""
    try:
        return msgspec.convert(given, WeightUpdate)
    except UNREADABLE as error:
        raise UtilityError(f"weight update: {error}.") from error
