"""Manifest of the executor `torch`. Torch-free; the device is opened when the executor is built."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, hookimpl
from core.plugin.manifest_of import manifest_of

CONTRACT = 1

core_spec, _load = manifest_of(
    "torch",
    "models in PyTorch, on any platform; the worker runs in the engine's process",
    "core_runtime.executor.uniproc:UniprocMaker",
)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Import torch and return the maker of executors.

    Without a configuration this is an engine process that starts: it imports what a step needs, and the rest of torch when
    something uses it.
    """
    if context.config is None:
        from core_runtime.executor.torch_parts import import_torch

        import_torch()
    return _load(context)
