"""Manifest of the `explain` KV connector. Torch-free."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="explain", summary="why a prompt was not cached (--explain-answers)")


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector from the engine's configuration."""
    from core_kv_connectors.misses import Explanations

    config = context.config
    assert config is not None
    return Explanations(config.cache.explains, adapters=config.adapters is not None)
