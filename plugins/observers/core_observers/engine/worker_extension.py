"""The user's own methods on the worker, which clients of the engine call by name.

Owns: `WorkerExtension`, an observer of the engine, which makes an object of the user's class and calls its methods between
steps. Never does: choose who may call (the routes do), or call a method whose name begins with an underscore. Called by: the
engine core.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import msgspec

from core.api.errors import UserError, UtilityError, nearest
from core.engine.observer import Engine, EngineObserver, EngineStart
from core_observers.named_object import named_object
from core_observers.observer_settings import WORKER_EXTENSION

logger = logging.getLogger(__name__)

FLAG = "--worker-extension-cls"


class WorkerExtension(EngineObserver):
    """The object of one engine. kind: the user's class."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Import the class; None without one. Raises UserError."""
        given = start.config.plugins.arguments.get(WORKER_EXTENSION)
        return None if given is None else cls(_imported(given["cls"]))

    def attach(self, engine: Engine) -> None:
        """Make the object, whose other attributes are those of the worker. Raises UserError."""
        self._queue = engine.queue
        worker = getattr(engine.executor, "worker", None)
        if worker is None:
            raise UserError(f"{FLAG}: the executor has no worker in the engine's process; leave it out.")
        attributes = {"__getattr__": lambda self, name: getattr(worker, name)}
        try:
            self._object = type(self._kind.__name__, (self._kind,), attributes)()
        except Exception as error:
            raise UserError(
                f"{FLAG} {self._kind.__name__}: cannot be made: {type(error).__name__}: {error}."
            ) from error
        worker.extension = self._object  # `LLM.collective_rpc` looks there

    def utilities(self, client: int) -> dict[str, Callable[..., Any]]:
        """Return the call of a method by name."""
        return {"call_worker_extension": self._call}

    def _call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        known = [name for name in dir(self._kind) if not name.startswith("_") and callable(getattr(self._kind, name))]
        if method not in known:
            raise UtilityError(f"{FLAG} has no method {method!r}; it has {', '.join(known)}.{nearest(method, known)}")
        called = getattr(self._object, method)
        try:
            return _plain(self._queue.beside(lambda: called(*args, **kwargs)))
        except Exception as error:
            logger.error("%s: %s failed.", FLAG, method, exc_info=error)
            raise UtilityError(f"{method} failed: {type(error).__name__}: {error}.") from None


def _plain(answer: Any) -> Any:
    """Return an answer that can be sent: plain values as they are, the text of any other."""
    try:
        return msgspec.to_builtins(answer)
    except (TypeError, ValueError, RecursionError):
        return str(answer)


def _imported(path: str) -> type:
    """Import the class. Raises UserError."""
    found = named_object(path, f"{FLAG} {path}")
    if not isinstance(found, type):
        raise UserError(f"{FLAG} {path}: is no class; expected module:Class.")
    return found
