"""The class of the worker: `Worker`, or a subclass that `--worker-cls` names.

Owns: importing and checking the subclass, and its part of the numerics id. Never does: make a worker. Called by: executors.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from pathlib import Path

from core.api.config import EngineConfig
from core.api.errors import UserError
from core_observers.named_object import named_object
from core_runtime.executor.worker import Worker
from core_runtime.specs.worker_class import WORKER_CLASS

FLAG = "--worker-cls"
DIGITS = 12


def worker_class(config: EngineConfig) -> type[Worker]:
    """Return the class of an engine's worker. Raises UserError for one that cannot be used."""
    given = config.plugins.arguments.get(WORKER_CLASS)
    if given is None:
        return Worker
    path = given["cls"]
    said = f"{FLAG} {path}"
    found = named_object(path, said)
    base = f"{Worker.__module__}:{Worker.__name__}"
    if not (isinstance(found, type) and issubclass(found, Worker)):
        raise UserError(f"{said}: expected a subclass of {base}; leave the argument out for that class itself.")
    if found is Worker:
        return Worker
    _check_overrides(found, said)
    return _with_numerics(found, said)


def _check_overrides(kind: type[Worker], said: str) -> None:
    """Compare overridden methods with those that executors call. Raises UserError for one with other parameters."""
    for name, own in inspect.getmembers(Worker, inspect.isfunction):
        theirs = inspect.getattr_static(kind, name)
        if theirs is own:
            continue
        if not inspect.isfunction(theirs):
            raise UserError(f"{said}: {name} is no method; expected {name}{inspect.signature(own)}.")
        parameters = inspect.signature(own).parameters.values()
        positional = [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]
        named = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        try:
            inspect.signature(theirs).bind(*positional, **dict.fromkeys(named))
        except TypeError as error:
            raise UserError(f"{said}: {name}: {error}; expected {name}{inspect.signature(own)}.") from None


def _with_numerics(kind: type[Worker], said: str) -> type[Worker]:
    """Return the class with its name and source in the numerics id.

    Another class, or another version of its file, may compute other numbers: pages of its cache, receipts and streams that
    go on after a death are then not mixed with those of this one.
    """
    digest = _digest(kind, said)

    def numerics(self: Worker) -> str:
        return f"{kind.numerics.__get__(self)}/{kind.__qualname__}-{digest}"

    names = {"numerics": property(numerics), "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), names)


def _digest(kind: type[Worker], said: str) -> str:
    """Return digits that stand for the file of a class. Raises UserError where it has none that can be read."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    try:
        content = Path(str(file)).read_bytes()
    except OSError as error:
        raise UserError(f"{said}: the file of its module cannot be read: {error}.") from error
    return hashlib.sha256(content).hexdigest()[:DIGITS]
