"""Manifest of the `tensorizer` loader."""

from __future__ import annotations

from typing import Any

from core.api.checkpoint import CheckpointFacts, FileFacts
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_plugins.loaders.tensorizer.arguments import TensorizerArguments

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is. It claims nothing: users get it only when they ask for it."""
    return PluginSpec(
        name="tensorizer",
        summary="files written by tensorizer, beside config.json; only when asked for",
        arguments=TensorizerArguments,
    )


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim nothing: users have to ask for it."""
    return None


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the loader."""
    from core_plugins.loaders.tensorizer.loader import TensorizerLoader

    return TensorizerLoader(context.arguments or TensorizerArguments())
