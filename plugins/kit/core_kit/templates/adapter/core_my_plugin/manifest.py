"""Manifest of `my_plugin`. Every command reads it, so it imports no torch."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="my_plugin", summary="adapters as numpy files")


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the format."""
    from core_my_plugin.format import NumpyFormat

    return NumpyFormat()
