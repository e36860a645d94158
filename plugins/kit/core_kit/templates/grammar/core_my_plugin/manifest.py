"""Manifest of `my_plugin`. Every command reads it, so it imports no torch."""

from __future__ import annotations

from typing import Any

from core.api.reason import Reason
from core.api.structured_outputs import GrammarSpec
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="my_plugin", summary="answers out of a list")


@hookimpl
def core_supports(query: GrammarSpec) -> list[Reason]:
    """Choices alone; whatever else is asked for goes to the next backend."""
    if query.kind == "choice":
        return []
    return [Reason("kind", "choice", query.kind)]


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the backend."""
    from core_my_plugin.backend import Backend

    return Backend(context.options["vocabulary"])
