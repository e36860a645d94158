"""Manifest of `my_plugin`. Every command reads it, so it imports no torch."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="my_plugin", summary="adapters in a folder for each team")


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the resolver."""
    from core_my_plugin.resolver import Resolver

    return Resolver("/srv/adapters")
