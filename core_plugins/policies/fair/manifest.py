"""Manifest of the `fair` policy."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="fair", summary="users take turns by the service that each has had (virtual token counter)")


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the policy."""
    from core_plugins.policies.fair.policy import FairPolicy

    return FairPolicy()
