"""Weight updates of a running engine: applied at once, or gathered and applied together.

Owns: `WeightUpdates`: the gathered updates, and the order of a change. Never does: touch a weight (the executor's reloader
does), or decide whether the engine computes (the state keeper does). Called by: the lifecycle, for its utilities.

The order of a change: record that it begins; swap the models; record the new weights; drop every cached key and value; free
the memory of replaced tensors; record the end. A death between two of these leaves the old weights or the new ones, never a
mixture, and never an old cache.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from core.api.config import EngineConfig
from core.api.errors import UNREADABLE, UtilityError
from core.api.weights import Version, WeightSource, WeightsState, WeightUpdate
from core.engine.observer import Engine
from core_supervision.engine_state import Gathering
from core_supervision.executor_parts import Reloader
from core_supervision.halt import between_steps, drop_cache
from core_supervision.state_keeper import StateKeeper

logger = logging.getLogger(__name__)

NOT_APPLIED = (
    "The weight update that was begun could not be applied and is dropped; start it again (start_weight_update)."
)


class WeightUpdates:
    """The weight updates of one engine, owned by its lifecycle.

    reloader: the executor's; None when it cannot replace weights.
    clock:    returns seconds since the epoch.
    """

    def __init__(
        self,
        core: Engine,
        config: EngineConfig,
        reloader: Reloader | None,
        keeper: StateKeeper,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._core = core
        self._config = config
        self._reloader = reloader
        self._keeper = keeper
        self._clock = clock
        self._gathered: list[WeightSource] = []
        self._frees_first = False
        self._kept_for = keeper.recorded.weights
        """Weights with which the next engine would have begun when tensors were last freed."""

    def take(self, update: dict[str, Any], mode: str) -> None:
        """Apply one update at once, or gather it when an update has begun. See `LifecycleCalls.update_weights`."""
        reloader = self._replacing()
        self._check_not_lost()
        request = _as_update(update)
        is_gathering = self._keeper.state.gathering is not None
        if is_gathering and request.weight_version is not None:
            raise UtilityError("weight update: name the version when you finish it.")
        try:
            source = between_steps(self._core, lambda: reloader.stage(request))
        except BaseException:
            self._discard(())  # tensors copied before the failure
            raise
        if is_gathering:
            self._gathered.append(source)
            self._frees_first |= request.frees_first
        else:
            self._apply([source], request.weight_version, mode, frees_first=request.frees_first)

    def start(self, client: int) -> None:
        """Begin to gather updates. Updates gathered before are dropped."""
        self._replacing()
        gathering = Gathering(client, self._clock())
        self._keeper.move("begin_gathering", lambda state: state.gathered(gathering))
        self._drop_gathered()

    def finish(self, weight_version: str | None, mode: str) -> None:
        """Apply the gathered updates. A failure drops all of them and changes nothing."""
        self._replacing()
        self._check_not_lost()
        gathering = self._keeper.state.gathering
        if gathering is None or not self._gathered:
            raise UtilityError("There is no weight update to finish; start one, and send tensors.")
        version = _as_version(weight_version)
        sources = self._gathered
        self._gathered = []
        try:
            self._apply(sources, version, mode, frees_first=self._frees_first)
        except BaseException:
            if self._keeper.state.gathering is not None and self._keeper.state.phase != "changing":
                lost = msgspec.structs.replace(gathering, lost=NOT_APPLIED)
                self._keeper.move("end_gathering", lambda state: state.gathered(lost))
            raise

    def reload(self) -> None:
        """Read the weights again from their present files."""
        self._change(self._replacing().reload)

    def free_replaced(self) -> None:
        """Free the tensors of earlier weights when the next engine has come to know of newer ones.

        It learns of them late when there was no memory for the record of an update.
        """
        if self._keeper.recorded.weights != self._kept_for:
            self._discard(())

    def _apply(self, sources: Sequence[WeightSource], version: str | None, mode: str, *, frees_first: bool) -> None:
        """Apply staged sources, or discard them when that fails."""
        reloader = self._replacing()
        try:
            self._change(
                lambda: reloader.apply(sources, version, frees_first=frees_first),
                mode,
                frees_first=frees_first,
                ends_gathering=True,
            )
        except BaseException:
            self._discard(sources)  # the reloader keeps those in use
            raise

    def _change(
        self, change: Callable[[], None], mode: str = "keep", *, frees_first: bool = False, ends_gathering: bool = False
    ) -> None:
        """Replace the weights, and drop everything computed with the previous ones, however the change ends."""
        before = self._replacing().state
        self._keeper.move("begin_update", lambda state: state.began("update"))
        is_done = False
        try:
            between_steps(self._core, change)
            is_done = True
            if mode == "abort":
                self._core.sequences.end_all()
        finally:
            self._settle(before, has_new_cache=is_done or frees_first, ends_gathering=ends_gathering)
        logger.info("The weights are of version %s now.", self._replacing().state.version)

    def _settle(self, before: WeightsState, *, has_new_cache: bool, ends_gathering: bool) -> None:
        """Make record and cache agree with the weights in use.

        before:        weights before the change.
        has_new_cache: whether models or the memory of the cache were replaced, even if the weights are the same.
        Raises EngineDeadError when the old cache cannot be dropped: nothing may be computed then.
        """
        reloader = self._replacing()
        weights = reloader.state
        if weights != before:
            self._keeper.move("swapped", lambda state: state.swapped(weights, ends_gathering=ends_gathering))
            self._config = msgspec.structs.replace(self._config, weights=weights)
            drop_cache(self._core, self._config)
        elif has_new_cache:
            drop_cache(self._core)
        self._keeper.move("changed", lambda state: state.changed(reloader.missing))
        self._discard(())

    def _check_not_lost(self) -> None:
        gathering = self._keeper.state.gathering
        if gathering is not None and gathering.lost:
            raise UtilityError(gathering.lost)

    def _replacing(self) -> Reloader:
        """Return the reloader. Raises UtilityError when weights cannot be replaced."""
        config = self._config
        if self._reloader is None:
            raise UtilityError("The executor of this engine does not replace weights.")
        holding = {
            "--state-canary": config.state_canary,
            "--keep-weights": config.keep_weights,
            "--prepared-weights": config.prepared_weights,
        }
        for flag, value in holding.items():
            if value is not None:
                raise UtilityError(f"Weights cannot be replaced with {flag}, which holds on to those of the start.")
        return self._reloader

    def _drop_gathered(self) -> None:
        sources = self._gathered
        self._gathered = []
        self._frees_first = False
        self._discard(sources)

    def _discard(self, sources: Iterable[WeightSource]) -> None:
        """Drop staged sources, and free all tensors that neither this engine nor the next one would read."""
        if self._reloader is None:
            return
        for source in sources:
            self._reloader.discard(source)
        self._kept_for = self._keeper.recorded.weights
        self._reloader.settle((*self._gathered, *self._kept_for.sources))


def _as_version(given: object) -> str | None:
    """Return the version. Raises UtilityError for one that cannot be sent in a header."""
    try:
        return msgspec.convert(given, Version | None)
    except UNREADABLE as error:
        raise UtilityError(f"weight_version {given!r}: {error}.") from error


def _as_update(given: dict[str, Any]) -> WeightUpdate:
    """Decode an update. Raises UtilityError that names a wrong field."""
    try:
        return msgspec.convert(given, WeightUpdate)
    except UNREADABLE as error:
        raise UtilityError(f"weight update: {error}.") from error
