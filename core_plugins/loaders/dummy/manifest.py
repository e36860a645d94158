"""Manifest of the `dummy` loader."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is. It claims no checkpoint: users get invented weights only if they ask for them."""
    return PluginSpec(name="dummy", summary="random weights for a directory with config.json; only when asked for")


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the loader."""
    from core_plugins.loaders.dummy.loader import DummyLoader

    return DummyLoader()
