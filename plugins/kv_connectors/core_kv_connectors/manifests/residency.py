"""Manifest of the `residency` KV connector. Torch-free."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="residency", summary="how long cached blocks stay (--kv-cache-metrics)")


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector from the engine's configuration."""
    from core_kv_connectors.residency import Residency

    config = context.config
    assert config is not None
    return Residency(config.cache.metrics_sample)
