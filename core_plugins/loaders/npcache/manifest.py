"""Manifest of the `npcache` loader."""

from __future__ import annotations

from typing import Any

from core.api.checkpoint import CheckpointFacts, FileFacts
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(
        name="npcache", summary="as pt, kept as numpy files in the folder np beside them; only when asked for"
    )


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim nothing, as it writes into the model's directory: users have to ask for it."""
    return None


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the loader."""
    from core_plugins.loaders.npcache.loader import NpcacheLoader

    return NpcacheLoader()
