"""A profile of chosen steps: it begins some steps after it was asked for, and ends by itself.

Owns: `ProfileWindow`, an observer of the engine, which starts and stops the executor's profiler between steps. Never does:
record, or write a trace. Called by: the engine core.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Self

from core.api.errors import CoreError, UtilityError
from core.engine.observer import Engine, EngineObserver, EngineStart
from core.scheduler.step import Step
from core_observers.observer_settings import PROFILE_WINDOW

logger = logging.getLogger(__name__)


class ProfileWindow(EngineObserver):
    """The window of one engine. delay: steps before it; length: steps in it, 0: until it is stopped."""

    def __init__(self, delay: int, length: int) -> None:
        self._delay = delay
        self._length = length
        self._before: int | None = None
        self._left: int | None = None
        self._is_over = False

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Make the window; None where profiles begin and end when they are told to."""
        given = start.config.plugins.arguments.get(PROFILE_WINDOW)
        if given is None or start.config.profiler is None:
            return None
        return cls(given["delay"], given["length"])

    def attach(self, engine: Engine) -> None:
        """Keep the engine's profiler."""
        self._queue = engine.queue
        executor: Any = engine.executor
        self._profiler = executor.profiler

    def utilities(self, client: int) -> dict[str, Callable[..., Any]]:
        """Return the calls that start and stop a profile, in place of the executor's own."""
        return {"start_profile": self._start, "stop_profile": self._stop}

    def finished(self, step: Step) -> None:
        """Begin after the steps before the window, and end after those in it."""
        if self._before is not None:
            self._before -= 1
            if self._before <= 0:
                self._begin()
        elif self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self._left = None
                self._is_over = True
                self._queue.beside(self._profiler.stop)

    def _start(self) -> str:
        if self._before is not None or self._left is not None:
            raise UtilityError("A profile is being recorded already; stop it first.")
        self._is_over = False
        if self._delay:
            self._before = self._delay
            return f"after {self._delay} steps"
        return self._begin()

    def _begin(self) -> str:
        self._before = None
        try:
            directory: str = self._queue.beside(self._profiler.start)
        except CoreError as error:
            if not self._delay:
                raise
            logger.error("No profile is recorded: %s", error)
            return ""
        self._left = self._length or None
        return directory

    def _stop(self) -> None:
        if self._is_over:
            self._is_over = False  # the trace has been written, or will be
            return
        if self._before is not None:
            self._before = None
            raise UtilityError(
                f"The profile had not begun: fewer than {self._delay} steps were computed since its start."
            )
        self._left = None
        self._queue.beside(self._profiler.stop)
