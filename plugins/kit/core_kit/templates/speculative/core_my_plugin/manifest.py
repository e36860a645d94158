"""Manifest of `my_plugin`. Every command reads it, so it imports no torch."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """What users write as `--speculative-config.KEY`."""

    repeat: Annotated[int, msgspec.Meta(ge=1, le=8, description="Most times that one token is drafted.")] = 2


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="my_plugin", summary="drafts what followed the last token before", arguments=Arguments)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the proposer."""
    from core_my_plugin.proposer import Proposer

    return Proposer((context.arguments or Arguments()).repeat)
