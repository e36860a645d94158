"""Calls of a script to the engine's worker: functions of the model, methods by name, profiles.

Owns: `WorkerMethods`, under vLLM's names. Never does: anything in the worker itself. Called by: users, through `LLM`.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core.api.errors import RequestError
from core_frontend.library.named_calls import CALLS, named_call
from core_frontend.stepped import SteppedClient


class WorkerMethods:
    """The methods of `LLM` for its worker."""

    @abstractmethod
    def _live_client(self) -> SteppedClient:
        """Return the engine. Raises EngineDeadError when it was closed."""

    @abstractmethod
    def _check_awake(self) -> None:
        """Raise RequestError if no step would compute anything."""

    def apply_model(self, func: Callable[[Any], Any]) -> list[Any]:
        """Return the result of a function of the model, in a list of one. func: called with the engine's own model
        object.

        Raises RequestError while the engine sleeps.
        """
        self._check_awake()
        return [func(self._live_client().worker.instances[0].model)]

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a function or method on the worker; return its answer in a list of one.

        method: a function, which is called with the worker first, or the name of one of the worker's methods; the names
            of `core_frontend.library.named_calls` are our own methods.
        timeout: no effect: the worker is in this thread.
        Raises RequestError for a name that the worker does not have.
        """
        if isinstance(method, str) and method in CALLS:
            return [named_call(method, args, kwargs or {}).on(self)]
        if not isinstance(method, str) and not callable(method):
            raise RequestError(f"method is {method!r}; expected a name or a function.", param="method")
        worker = self._live_client().worker
        if callable(method):
            return [method(worker, *args, **(kwargs or {}))]
        found = getattr(getattr(worker, "extension", worker), method, None)
        if method.startswith("_") or not callable(found):
            raise RequestError(
                f"The worker has no method {method!r}; pass a function, which is called with the worker.",
                param="method",
            )
        return [found(*args, **(kwargs or {}))]

    def start_profile(self) -> str:
        """Record the engine's steps with torch's profiler; return the directory of traces.

        Needs profiler_config={"profiler": "torch", "torch_profiler_dir": ...}. Raises UtilityError.
        """
        return str(self._live_client().core.call("start_profile"))

    def stop_profile(self) -> str:
        """Stop recording; return the path of the written trace. Raises UtilityError."""
        core = self._live_client().core
        core.call("stop_profile")
        while (path := core.call("written_profile")) is None:
            time.sleep(0.02)
        return str(path)
