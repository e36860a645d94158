"""Manifest of the `priority` policy."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="priority", summary="lower priority numbers first, then by arrival")


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the policy."""
    from core_plugins.policies.priority.policy import PriorityPolicy

    return PriorityPolicy()
