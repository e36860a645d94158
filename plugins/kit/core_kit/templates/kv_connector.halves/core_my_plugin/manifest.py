"""Manifest of `my_plugin`. Every command reads it, so it imports no torch."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --kv-connectors-config.my_plugin."""

    directory: Annotated[str, msgspec.Meta(description="directory of pages; empty: one for this engine")] = ""


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(
        name="my_plugin",
        summary="KV blocks in shared memory, moved by a worker half",
        arguments=Arguments,
        constraints={"tensor_parallel_size": [1], "pipeline_parallel_size": [1]},
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the half that is asked for."""
    if context.options.get("half") == "worker":
        from core_my_plugin.worker_half import Half

        return Half(context.arguments.directory)
    from core_my_plugin.connector import Connector

    return Connector(context.arguments.directory, context.options["fingerprint"])
