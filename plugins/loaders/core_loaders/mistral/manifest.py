"""Manifest of the `mistral` loader."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="mistral", summary="directories with params.json and consolidated*.safetensors")


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim directories in Mistral's layout, unless they are in Hugging Face's layout as well."""
    if not isinstance(facts, FileFacts) or not facts.is_directory or "params.json" not in facts.names:
        return None
    has_weights = any(name.startswith("consolidated") and name.endswith(".safetensors") for name in facts.names)
    if "config.json" in facts.names or not has_weights:
        return None
    return "the directory holds params.json and consolidated safetensors files"


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the loader."""
    from core_loaders.mistral.loader import MistralLoader

    strategy = None if context.config is None else context.config.safetensors_load_strategy
    return MistralLoader(strategy)
