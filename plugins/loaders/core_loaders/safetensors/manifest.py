"""Manifest of the `safetensors` loader."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="safetensors", summary="directories with config.json and *.safetensors")


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim directories with a configuration and at least one safetensors file or index."""
    if not isinstance(facts, FileFacts) or not facts.is_directory or "config.json" not in facts.names:
        return None
    weights = any(name.endswith((".safetensors", ".safetensors.index.json")) for name in facts.names)
    return "the directory holds config.json and safetensors files" if weights else None


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the loader."""
    from core_loaders.safetensors.loader import SafetensorsLoader

    strategy = None if context.config is None else context.config.safetensors_load_strategy
    return SafetensorsLoader(strategy)
