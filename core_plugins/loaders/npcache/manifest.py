"""Manifest of the `npcache` loader."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is. It claims no checkpoint, as it writes into its directory."""
    return PluginSpec(
        name="npcache", summary="as pt, kept as numpy files in the folder np beside them; only when asked for"
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the loader."""
    from core_plugins.loaders.npcache.loader import NpcacheLoader

    return NpcacheLoader()
