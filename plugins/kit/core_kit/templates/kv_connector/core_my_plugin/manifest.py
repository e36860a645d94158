"""Manifest of `my_plugin`. Every command reads it, so it imports no torch."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --kv-connectors-config.my_plugin."""

    size_mib: Annotated[int, msgspec.Meta(description="MiB of host memory for pages", ge=1)] = 64


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="my_plugin", summary="evicted blocks in a dictionary", arguments=Arguments)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector."""
    from core_my_plugin.connector import Connector

    return Connector(context.arguments.size_mib << 20, context.options["fingerprint"])
