"""What an engine does besides steps: it pauses, sleeps and takes new weights.

Owns: `Lifecycle`: what clients may ask for, which parts of the memory are there, and what clients and the next engine hear of
it. Never does: schedule, or touch a weight (the executor's reloader does). Called by: the engine core, for its utilities.

A change that takes the cache away has all requests start over, with the tokens that they have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, get_args

from core.api.config import EngineConfig
from core.api.errors import UtilityError, nearest
from core.api.weights import MemoryPart, WeightsState
from core.engine import lasting
from core.engine.executor import Executor, Reloader, ReloadingExecutor
from core.engine.halt import Halt, Halting, between_steps, check_mode
from core.engine.lasting import Lasting
from core.engine.weight_updates import WeightUpdates

logger = logging.getLogger(__name__)

PARTS: Final[tuple[MemoryPart, ...]] = get_args(MemoryPart)
LEVELS: Final = (1, 2)


class Lifecycle:
    """Of one engine.

    halt:     whether and why it computes nothing.
    has_news: whether clients are to hear of a change.
    level:    at which it sleeps; 0: it does not.
    """

    def __init__(self, core: Halting, config: EngineConfig, executor: Executor) -> None:
        self.halt = Halt(core)
        self.has_news = False
        self.level = 0
        self._core = core
        self._config = config
        self._reloader: Reloader | None = executor.reloader if isinstance(executor, ReloadingExecutor) else None
        self._missing: set[MemoryPart] = set()
        self._updates = WeightUpdates(core, config, self._reloader, self._updating)

    @property
    def weights(self) -> WeightsState:
        """What the weights are made of."""
        return self._config.weights if self._reloader is None else self._reloader.state

    @property
    def is_paused(self) -> bool:
        """Whether requests wait because somebody asked for that."""
        return "pause" in self.halt.reasons

    def go_on_as(self, before: Lasting) -> None:
        """Sleep and pause as the engine before this one did when it died."""
        if not before.halted_by:
            return
        self.halt.halt(before.halted_by)
        if before.sleep_level:
            self._sleep(self._sleeping(), before.sleep_level)
            woken = [part for part in PARTS if part not in before.missing]
            self._wake(woken)
        self._settle()

    def tell_again(self) -> None:
        """Somebody has come who does not know of earlier changes, if there were any."""
        if self.halt.reasons or self.weights.version:
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
        self.halt.drained()
        return {
            "is_halted": self.halt.is_halted,
            "is_paused": self.is_paused,
            "is_sleeping": self.level > 0,
            "sleep_level": self.level,
            "missing": sorted(self._missing),
            "weight_version": self.weights.version,
        }

    def pause(self, mode: str = "abort", clear_cache: bool = True) -> dict[str, Any]:
        """Compute nothing until `resume`; requests that come wait.

        mode: what becomes of those that are there: `abort` ends them, `keep` has them go on later, `wait` has them end
        first: then the state says `is_halted` once they have.
        clear_cache: whether cached prefixes are forgotten; with `wait`, by the caller, once they have ended.
        """
        check_mode(mode)
        self._begin("pause", mode)
        if clear_cache and self.halt.is_halted:
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
        reloader = self._sleeping()
        if level not in LEVELS or isinstance(level, bool):
            raise UtilityError(f"sleep level is {level!r}; expected 1 or 2. To compute nothing for a while, pause.")
        check_mode(mode)
        if self.level:
            return self.state()
        self._begin("sleep", mode)
        if not self.halt.is_halted:
            self._release("sleep")
            raise UtilityError("Requests still run; pause with mode `wait` and sleep when they have ended.")
        self._sleep(reloader, level)
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
        self._updates.take(update, mode)
        return self.state()

    def start_weight_update(self) -> dict[str, Any]:
        """Begin to gather updates, which `finish_weight_update` applies together. One that was begun before is dropped."""
        self._updates.start()
        return self.state()

    def finish_weight_update(self, weight_version: str | None = None, mode: str = "keep") -> dict[str, Any]:
        """Apply what was gathered."""
        self._updates.finish(weight_version, mode)
        return self.state()

    def reload_weights(self) -> dict[str, Any]:
        """Read the weights again, as their files are now."""
        self._updates.reload()
        return self.state()

    @contextmanager
    def _updating(self, mode: str) -> Iterator[None]:
        """Nothing is computed within."""
        self._begin("update", mode)
        try:
            yield
        finally:
            self._release("update")

    def _begin(self, why: str, mode: str) -> None:
        self.halt.begin(why, mode)
        self._settle()

    def _release(self, why: str) -> None:
        self.halt.release(why)
        self._settle()

    def _sleeping(self) -> Reloader:
        """The reloader. Raises UtilityError for an engine that does not sleep."""
        if self._reloader is None or not self._config.sleeps:
            raise UtilityError("This engine does not sleep; start it with --enable-sleep-mode.")
        return self._reloader

    def _sleep(self, reloader: Reloader, level: int) -> None:
        try:
            between_steps(self._core, lambda: reloader.release(level))
        except BaseException:
            self._release("sleep")
            raise
        self.level = level
        self._missing = set(PARTS)
        self._core.start_over()
        self._core.drop_host_pages()

    def _wake(self, parts: Sequence[MemoryPart]) -> None:
        reloader = self._sleeping()
        between_steps(self._core, lambda: reloader.restore(parts))
        self._missing -= set(parts)
        if not self._missing:
            self.level = 0
            self._release("sleep")

    def _settle(self) -> None:
        """Leave a record of what is now, and have clients told."""
        self.has_news = True
        record = Lasting(
            weights=self.weights,
            sleep_level=self.level,
            missing=tuple(sorted(self._missing)),
            halted_by=tuple(sorted(self.halt.reasons - {"update"})),
        )
        try:
            lasting.write(self._config.lasting_file, record)
        except OSError as error:
            logger.error("The next engine will not know of this: %s.", error.strerror)
