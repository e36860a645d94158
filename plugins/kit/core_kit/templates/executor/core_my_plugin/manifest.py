"""Manifest of `my_plugin`. Every command reads it, so it imports no torch."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="my_plugin", summary="says the prompt again", capabilities={"devices": ["cpu"]})


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Import what computes. No device is opened here: the engine asks for the executor later."""
    from core_my_plugin.executor import Maker

    return Maker()
