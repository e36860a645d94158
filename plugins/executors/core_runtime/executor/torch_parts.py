"""Parts of torch that the steps of a model never use, imported only when something uses them.

Owns: the list of these parts, putting off their import, and importing them after all. Never does: keep a part from anyone.
Called by: the executor's manifest (the early import of an engine process), everything here that computes on device `meta`,
and the executor, for code of third parties.

A third of the time of `import torch` goes into decompositions, Python's kernels for the device `meta`, and `torch.export`
(1.9 s of processor time became 1.2 on a busy machine, torch 2.13). A part that is put off is a module whose file runs when it
is imported again, when one of its names is read, or when a module of torch is imported that torch does not import itself. Only
computing on `meta` does none of these, and would miss kernels: its callers here call `complete`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import threading
import types
from collections.abc import Sequence
from typing import Any, Final

from core.api.config import EngineConfig
from core.plugin.distributions import is_own
from core_observers.observer_settings import WORKER_EXTENSION

PARTS: Final = ("torch._meta_registrations", "torch.distributed._meta_registrations", "torch.export")
UNTOUCHED: Final = frozenset({"__class__", "__dict__", "__file__", "__name__", "__path__"})
"""Attributes that `inspect` reads of every module, and the import system of a package: reading them uses nothing."""


class _PutOff(types.ModuleType):
    """A module whose file has not run yet."""

    def __getattribute__(self, name: str) -> Any:
        if name not in UNTOUCHED:
            _run(self)
        return types.ModuleType.__getattribute__(self, name)


class _Later(importlib.abc.Loader):
    """Makes modules that run later.

    real: runs them.
    lock: held by the thread in which a module runs.
    runs: whether it runs.
    """

    def __init__(self, real: importlib.abc.Loader) -> None:
        self.real = real
        self.lock = threading.RLock()
        self.runs = False

    def exec_module(self, module: types.ModuleType) -> None:
        """Put the module off."""
        module.__class__ = _PutOff


class _Present(importlib.abc.Loader):
    """Answers an import with a module that was imported on the way. module: as it was made."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        """Give the module its own spec back."""
        module.__spec__ = self._spec


class _Finder(importlib.abc.MetaPathFinder):
    """Puts the parts off while torch is imported. Afterwards, whoever imports more of torch has them imported first.

    torch's modules import one another in circles, which only resolve in the order in which torch itself imports them.
    """

    def __init__(self) -> None:
        self.in_torch = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("torch."):
            return None
        if self.in_torch:
            return _put_off(fullname, path) if fullname in PARTS else None
        with contextlib.suppress(ValueError):  # another thread came first
            sys.meta_path.remove(self)
        complete()
        module = sys.modules.get(fullname)
        if module is None:
            return None
        # importlib returns the spec of a module that has appeared meanwhile instead of ours, and would run its file again.
        module.__spec__ = importlib.machinery.ModuleSpec(fullname, _Present(module))
        return module.__spec__


def _put_off(name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    spec = importlib.machinery.PathFinder.find_spec(name, path)
    if spec is not None and spec.loader is not None:
        spec.loader = _Later(spec.loader)
    return spec


def import_torch() -> None:
    """Import torch without the parts, unless it is imported already."""
    if "torch" in sys.modules:
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module("torch")
    except BaseException:
        sys.meta_path.remove(finder)
        raise
    finder.in_torch = False


def complete() -> None:
    """Import the parts that were put off; does nothing the second time."""
    for name in PARTS:
        with contextlib.suppress(ModuleNotFoundError):  # a torch without this part
            importlib.import_module(name)


def needs_all(config: EngineConfig) -> bool:
    """Whether code that is not this project's may run in the engine, which may use any part of torch."""
    plugins = config.plugins
    if WORKER_EXTENSION in plugins.arguments or any("." in name or ":" in name for name in plugins.logits_processors):
        return True
    return config.model.implementation == "transformers" or not all(is_own(row.distribution) for row in plugins.table)


def _run(module: types.ModuleType) -> None:
    """Run the file of a module that was put off. Other threads that use it meanwhile wait."""
    loader = object.__getattribute__(module, "__spec__").loader
    with loader.lock:
        # Its own thread reads names of it while it runs, as modules that import one another do.
        if loader.runs or object.__getattribute__(module, "__class__") is not _PutOff:
            return
        loader.runs = True
        try:
            loader.real.exec_module(module)
            module.__class__ = types.ModuleType
        finally:
            loader.runs = False
