"""Manifest of `my_plugin`. Every command reads it, so it imports no torch."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="my_plugin", summary="checkpoints with model_type my_plugin")


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """A sentence why this checkpoint is mine, or None."""
    mine = isinstance(facts, CheckpointFacts) and facts.model_type == "my_plugin"
    return "its model_type is my_plugin" if mine else None


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the family; it needs no torch."""
    from core_my_plugin.family import MyPluginFamily

    return MyPluginFamily()
