"""Manifest of the `events` KV connector. Torch-free."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="events", summary="stored and removed blocks, published over ZMQ (--kv-events-config)")


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector from the engine's configuration."""
    from core_kv_connectors.event_publisher import PublishedEvents
    from core_kv_connectors.events import SHORT

    config = context.config
    assert config is not None
    cache = config.cache
    assert cache.events is not None
    return PublishedEvents(cache.events, cache.block_size, cache.groups, shortens=cache.hash_algorithm == SHORT)
