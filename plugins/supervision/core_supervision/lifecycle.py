"""The lifecycle of an engine: pause, sleep, wake-up and new weights.

Owns: `Lifecycle`: the order of a sleep and of its end, and how an engine begins after the death of another. Never does:
schedule, touch a weight (the executor's reloader does), or change the engine's state other than by the state keeper. Called
by: its observer (`core_supervision.lifecycle_observer`), and the calls of clients (`core_supervision.lifecycle_calls`).

A change that drops the cache makes all requests start over with their tokens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from core.api.config import EngineConfig
from core.api.errors import EngineDeadError, UtilityError
from core.api.weights import MemoryPart, WeightsState
from core.engine.executor import Executor
from core.engine.observer import Engine
from core.engine.utilities import OWNER
from core_supervision.engine_state import EngineState
from core_supervision.executor_parts import Reloader, ReloadingExecutor
from core_supervision.halt import Halt, between_steps, drop_cache, save_cache
from core_supervision.lifecycle_calls import LifecycleCalls
from core_supervision.persistent_flags import PersistentFlags
from core_supervision.state_keeper import StateKeeper, StateStorage
from core_supervision.state_text import reported_holders
from core_supervision.weight_updates import WeightUpdates

logger = logging.getLogger(__name__)

DEEPEST: Final = 2
"""The level of sleep that does not write the weights to a file."""


class Lifecycle:
    """The lifecycle of one engine, owned by its observer.

    halt:     gate that stops steps and keeps new requests.
    keeper:   keeper of its state.
    updates:  weight updates.
    clock:    returns seconds since the epoch.

    storage: memory that the next engine reads; None: the file in the configuration.
    """

    def __init__(
        self,
        core: Engine,
        config: EngineConfig,
        executor: Executor,
        *,
        storage: StateStorage | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.halt = Halt(core)
        self._core = core
        self._config = config
        self.clock = clock
        self._reloader: Reloader | None = executor.reloader if isinstance(executor, ReloadingExecutor) else None
        weights = config.weights if self._reloader is None else self._reloader.state
        begin = EngineState(weights=weights, cache_number=weights.number)
        self.keeper = StateKeeper(begin, storage or PersistentFlags(config.lasting_file), self._follow)
        self.updates = WeightUpdates(core, config, self._reloader, self.keeper, clock)
        self._describe()

    @property
    def record(self) -> EngineState:
        """The present state of the engine."""
        return self.keeper.state

    @property
    def weights(self) -> WeightsState:
        """Sources and version of the weights."""
        return self.record.weights

    @property
    def level(self) -> int:
        """The level of its sleep; 0 while all memory is present."""
        return (self.record.sleep_level or 2) if self.record.missing else 0

    @property
    def is_paused(self) -> bool:
        """Whether a pause has not ended."""
        return self.record.is_paused

    def go_on_as(self, before: EngineState) -> None:
        """Pause and sleep as the previous engine did when it died. A failure is logged, and the engine continues awake."""
        if self._reloader is not None:
            self._reloader.settle(before.weights.sources)  # sources that the dead engine had staged are in no weights
        self.keeper.take_over(before, self.weights)
        if before.change is not None and before.sleeper is None:
            logger.warning("The engine before this one died during a change (%s), which did not happen.", before.change)
        if before.sleeper is not None:
            self._sleep_on(before, before.sleeper.since)

    def client_gone(self, client: int) -> None:
        """End the waiting calls of a client that is gone."""
        self.keeper.move("let_go", lambda state: state.let_go(client))

    def note_drained(self) -> None:
        """Record when the requests for which a call waits have ended."""
        if self.record.drains and not self.requests_run:
            self.keeper.move("drained", EngineState.drained)

    def catch_up(self) -> bool:
        """Record the present state if it is not, and free tensors that then are not needed; returns whether it is recorded."""
        self.keeper.record_again()
        self.updates.free_replaced()
        return self.keeper.is_recorded

    @property
    def requests_run(self) -> bool:
        """Whether a waiting call still has to wait for requests. A halted engine needs no step to report their ends."""
        return self._core.sequences.live if self._core.is_halted else self._core.sequences.unfinished

    def utilities(self, client: int = OWNER) -> dict[str, Callable[..., Any]]:
        """Return the calls by name. client: number of the calling client."""
        return LifecycleCalls(self, self._core, client).by_name()

    def sleeping(self) -> Reloader:
        """Return the reloader. Raises UtilityError for an engine that does not support sleep."""
        if self._reloader is None or not self._config.sleeps:
            raise UtilityError("This engine does not sleep; start it with --enable-sleep-mode.")
        return self._reloader

    def give_back(self, level: int, since: float, *, ends_requests: bool = False) -> None:
        """Release weights, cache and device.

        since: begin of the sleep, in seconds since the epoch.
        ends_requests: whether present requests end, once nothing can fail any more; otherwise they start over later.
        Raises UtilityError; then nothing has changed, unless the state shows missing memory.
        """
        reloader = self.sleeping()
        if self.record.change is None:  # otherwise it continues the sleep of the previous engine
            self.keeper.move("begin_sleep", lambda state: state.began("sleep"))
        try:
            if not self.record.missing:
                save_cache(self._core, keeps_memory=level < DEEPEST)
            between_steps(self._core, lambda: reloader.release(level))
        except BaseException:
            self._end_change(reloader)
            raise
        if ends_requests:
            self._core.sequences.end_all()
        drop_cache(self._core)
        if level == DEEPEST:
            self._core.kv_services.notify("drop_memory")
        self.keeper.move("slept", lambda state: state.slept(level, since))

    def bring_back(self, parts: Sequence[MemoryPart]) -> None:
        """Restore parts of the memory. Raises UtilityError; the state then shows what is still missing."""
        reloader = self._reloader
        assert reloader is not None, "memory was given back"
        self.keeper.move("begin_wake", lambda state: state.began("wake"))
        try:
            between_steps(self._core, lambda: reloader.restore(parts))
        finally:
            self.keeper.move("changed", lambda state: state.changed(reloader.missing))

    def _end_change(self, reloader: Reloader) -> None:
        """End a failed sleep: the cache counts as lost if any memory is."""
        missing = reloader.missing
        if not missing.issubset(self.record.missing):
            drop_cache(self._core)
        self.keeper.move("changed", lambda state: state.changed(missing))

    def _sleep_on(self, before: EngineState, since: float) -> None:
        """Continue the sleep in `before`; at level 2 when the weights cannot be written."""
        for level in range(before.sleep_level or 1, DEEPEST + 1):
            try:
                self.give_back(level, since)
                if before.missing and before.present:  # with nothing missing, that engine died before it slept again
                    self.bring_back(before.present)
            except EngineDeadError:
                raise
            except Exception as error:
                logger.error("The engine could not go on sleeping at level %d: %s", level, error)
            if self.record.missing:
                return
        if self.record.change is not None:
            self.keeper.move("changed", lambda state: state.changed(()))
        logger.error("The engine slept before it died, and is awake now.")

    def _follow(self, state: EngineState) -> None:
        self._core.has_news = True
        self._core.waiting_clients = state.waiting_clients
        self._describe()
        self.halt.follow(state)

    def _describe(self) -> None:
        """Enter the present state into the statistics that every message copies."""
        stats = self._core.scheduler.live_stats
        stats.weight_version = self.weights.version
        stats.sleep_level = self.level
        stats.is_paused = self.is_paused
        stats.phase = self.record.phase
        stats.holders = reported_holders(self.record)
