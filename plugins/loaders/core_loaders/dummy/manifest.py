"""Manifest of the `dummy` loader.

There is no `core_claim`: users get random weights only by request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

if TYPE_CHECKING:
    from core_loaders.dummy.loader import DummyLoader

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="dummy", summary="random weights for a directory with config.json; only when asked for")


@hookimpl
def core_load(context: LoadContext) -> DummyLoader:
    """Build the loader, which draws on the run's device."""
    from core_loaders.dummy.loader import DummyLoader

    return DummyLoader(context.device)
