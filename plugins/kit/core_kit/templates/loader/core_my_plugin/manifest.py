"""Manifest of `my_plugin`. Every command reads it, so it imports no torch."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="my_plugin", summary="numpy archives: config.json and weights.npz")


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """A sentence why these files are mine, or None."""
    return "holds weights.npz" if isinstance(facts, FileFacts) and "weights.npz" in facts.names else None


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the loader."""
    from core_my_plugin.loader import Loader

    return Loader()
