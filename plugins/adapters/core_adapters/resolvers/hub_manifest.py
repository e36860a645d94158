"""Manifest of the `hub` resolver."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="hub", summary="adapters of the hub, each under OWNER/NAME; requests have them downloaded")


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the resolver."""
    from core_adapters.resolvers.hub import HubResolver

    return HubResolver()
