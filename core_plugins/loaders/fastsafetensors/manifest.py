"""Manifest of the `fastsafetensors` loader."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_plugins.loaders.fastsafetensors.arguments import FastArguments

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is. It claims nothing: users get it only when they ask for it."""
    return PluginSpec(
        name="fastsafetensors",
        summary="safetensors through fastsafetensors, without GPU direct storage; only when asked for",
        arguments=FastArguments,
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the loader."""
    from core_plugins.loaders.fastsafetensors.loader import FastSafetensorsLoader

    return FastSafetensorsLoader(context.arguments or FastArguments())
