"""Utilities of an executor that clients may call.

Owns: `ExecutorCalls`: the check of a request's parameters, and the profiler. Never does: step. Called by: the engine core, for
its utilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from core.api.errors import UtilityError
from core.api.sampling_params import SamplingParams
from core.engine.executor import CheckingExecutor, Executor, ProfiledExecutor, Profiler
from core.engine.step_queue import StepQueue


class ExecutorCalls:
    """The utilities of one executor. queue: its step queue; calls are made between two steps."""

    def __init__(self, executor: Executor, queue: StepQueue) -> None:
        self._executor = executor
        self._queue = queue

    def utilities(self) -> dict[str, Callable[..., Any]]:
        """Return the utilities by name."""
        return {
            "check_params": self.check_params,
            "start_profile": lambda: self._queue.beside(self._profiler().start),
            "stop_profile": lambda: self._queue.beside(self._profiler().stop),
            # Not between steps: it only returns a path, and a client polls it.
            "written_profile": lambda: self._profiler().written(),
        }

    def check_params(self, params: SamplingParams | Mapping[str, Any]) -> str:
        """Return what the executor's plugins find wrong with a request's parameters, as a sentence, or an empty string.

        Other processes send them as plain values.
        """
        executor = self._executor
        if not isinstance(executor, CheckingExecutor):
            return ""
        wanted = params if isinstance(params, SamplingParams) else msgspec.convert(params, SamplingParams)
        found = self._queue.beside(lambda: executor.check_params(wanted))
        return str(found)

    def _profiler(self) -> Profiler:
        """Return the executor's profiler. Raises UtilityError when there is none."""
        executor = self._executor
        profiler = executor.profiler if isinstance(executor, ProfiledExecutor) else None
        if profiler is None:
            raise UtilityError("This engine has no profiler; start it with --profiler-config.profiler torch.")
        return profiler
