"""Manifest of the `pt` loader."""

from __future__ import annotations

from typing import Any

from core.api.checkpoint import CheckpointFacts, FileFacts
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(
        name="pt", summary="directories with config.json and *.bin, *.pt or *.pth; nothing in them is run"
    )


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim directories with a configuration and torch's files, where there is no safetensors file."""
    if not isinstance(facts, FileFacts) or not facts.is_directory or "config.json" not in facts.names:
        return None
    if any(name.endswith(".safetensors") for name in facts.names):
        return None
    weights = any(name.endswith((".bin", ".pt", ".pth")) for name in facts.names)
    return "the directory holds config.json and files of torch" if weights else None


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the loader."""
    from core_plugins.loaders.pt.loader import PtLoader

    return PtLoader()
