"""Manifest of the executor `torch`. Torch-free."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(
        name="torch", summary="models in PyTorch, on any platform; the worker runs in the engine's process"
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Import torch and make the executor's factory; the device is opened when the executor is built."""
    from core_runtime.executor.uniproc import UniprocMaker

    return UniprocMaker()
