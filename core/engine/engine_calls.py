"""Utilities of an engine core by name.

Owns: `EngineCalls`: the table, made for each call, and the reset of the prefix cache. Never does: know a utility of an
observer. Called by: the engine core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core.engine.executor_calls import ExecutorCalls
from core.engine.observer import EngineObserver
from core.engine.sequences import Sequences
from core.engine.utilities import call_utility
from core.scheduler.scheduler import Scheduler


class EngineCalls:
    """The utilities of one engine core, of its executor and of its observers; owned by the core."""

    def __init__(
        self,
        scheduler: Scheduler,
        sequences: Sequences,
        executor_calls: ExecutorCalls,
        observers: Sequence[EngineObserver],
    ) -> None:
        self._scheduler = scheduler
        self._sequences = sequences
        self._executor_calls = executor_calls
        self._observers = observers

    def call(self, method: str, arguments: Mapping[str, Any], client: int) -> Any:
        """Call the utility `method` with these arguments; returns its result.

        client: number of the calling client.
        Raises UtilityError for an unknown method or argument, EngineDeadError when nothing can be computed any more.
        """
        utilities: dict[str, Callable[..., Any]] = {
            "ping": lambda: None,
            "reset_prefix_cache": self.reset_prefix_cache,
            "check_integrity": self._scheduler.check_integrity,
            **self._executor_calls.utilities(),
        }
        for observer in self._observers:
            utilities |= observer.utilities(client)
        try:
            for observer in self._observers:  # within the try: when one fails, the earlier ones still hear of the end
                observer.calling(method)
            return call_utility(utilities, method, arguments)
        finally:
            for observer in self._observers:
                observer.calling("")

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Drop all cached prefixes, in connectors too; False, without a change, while requests run.

        reset_running_requests: whether running requests start over first, with their tokens; the result is then True.
        """
        if reset_running_requests:
            self._sequences.start_over()
        return self._scheduler.reset_prefix_cache()
