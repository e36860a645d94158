"""Manifest of the `tiers` KV connector. Torch-free."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(
        name="tiers",
        summary="evicted blocks in host memory and on disk (--kv-offloading-size, -disk-path)",
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector from the engine's configuration."""
    from core_kv_connectors.tiers.local import LocalTiers

    config = context.config
    assert config is not None
    return LocalTiers(config, context.options["fingerprint"], context.options["page_bytes"])
