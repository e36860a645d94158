"""Newer weights for an engine that runs: taken at once, or gathered and taken together.

Owns: `WeightUpdates`: what was gathered, and the order of a change. Never does: touch a weight (the executor's reloader does),
or halt the engine. Called by: the lifecycle, for its utilities.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from core.api.config import EngineConfig
from core.api.decoding import UNREADABLE
from core.api.errors import UtilityError
from core.api.weights import Version, WeightSource, WeightUpdate
from core.engine.executor import Reloader
from core.engine.halt import Halting, between_steps, check_mode

logger = logging.getLogger(__name__)


class WeightUpdates:
    """Of one engine.

    reloader: None where the executor replaces no weights.
    halted: the engine computes nothing within; takes a mode, see `Lifecycle.pause`.
    """

    def __init__(
        self,
        core: Halting,
        config: EngineConfig,
        reloader: Reloader | None,
        halted: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._core = core
        self._config = config
        self._reloader = reloader
        self._halted = halted
        self._gathered: list[WeightSource] | None = None
        self._frees_first = False

    def take(self, update: dict[str, Any], mode: str) -> None:
        """One update, at once, or with others when an update was begun. See `Lifecycle.update_weights`."""
        reloader = self._replacing()
        check_mode(mode)
        asked = _as_update(update)
        source = between_steps(self._core, lambda: reloader.stage(asked))
        if self._gathered is None:
            self._apply([source], asked.weight_version, mode, frees_first=asked.frees_first)
        elif asked.weight_version is None:
            self._gathered.append(source)
            self._frees_first |= asked.frees_first
        else:
            self._discard([source])
            raise UtilityError("weight update: name the version when you finish it.")

    def start(self) -> None:
        """Begin to gather updates. What was gathered before is dropped."""
        self._replacing()
        self._discard(self._gathered or ())
        self._gathered = []
        self._frees_first = False

    def finish(self, weight_version: str | None, mode: str) -> None:
        """Apply what was gathered."""
        self._replacing()
        check_mode(mode)
        gathered = self._gathered
        if not gathered:
            raise UtilityError("There is no weight update to finish; start one, and send tensors.")
        version = _as_version(weight_version)
        self._gathered = None
        self._apply(gathered, version, mode, frees_first=self._frees_first)

    def reload(self) -> None:
        """Read the weights again, as their files are now."""
        reloader = self._replacing()
        with self._halted("keep"):
            self._change(reloader.reload)

    def _apply(self, sources: Sequence[WeightSource], version: str | None, mode: str, *, frees_first: bool) -> None:
        """Use staged sources, or discard them."""
        reloader = self._replacing()
        try:
            if mode == "wait" and self._core.has_requests():
                raise UtilityError("Requests still run; pause with mode `wait` and update when they have ended.")
            with self._halted(mode):
                self._change(lambda: reloader.apply(sources, version, frees_first=frees_first))
        except BaseException:
            self._discard(sources)
            raise

    def _change(self, change: Callable[[], None]) -> None:
        """Replace the weights, and forget what was computed with those before."""
        between_steps(self._core, change)
        weights = self._replacing().state
        self._config = msgspec.structs.replace(self._config, weights=weights)
        self._core.use_weights(self._config)
        self._core.start_over()
        logger.info("The weights are of version %s now.", weights.version)

    def _replacing(self) -> Reloader:
        """The reloader. Raises UtilityError where weights cannot be replaced."""
        config = self._config
        if self._reloader is None:
            raise UtilityError("The executor of this engine does not replace weights.")
        for value, flag in ((config.state_canary, "--state-canary"), (config.keep_weights, "--keep-weights")):
            if value is not None:
                raise UtilityError(f"Weights cannot be replaced with {flag}, which holds on to those of the start.")
        return self._reloader

    def _discard(self, sources: Iterable[WeightSource]) -> None:
        if self._reloader is not None:
            for source in sources:
                self._reloader.discard(source)


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
