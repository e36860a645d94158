"""Manifest of the `fcfs` policy."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="fcfs", summary="first come, first served")


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the policy."""
    from core_plugins.policies.fcfs.policy import FcfsPolicy

    return FcfsPolicy()
