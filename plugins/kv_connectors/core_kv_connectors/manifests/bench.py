"""Manifest of the `bench` KV connector: made-up keys and values, for measuring decoding alone. Torch-free."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --kv-connectors-config.bench. The seed has no default: whoever wants answers that no model gives says so."""

    seed: Annotated[
        int,
        msgspec.Meta(
            description="of values that no model computed, which make every answer meaningless", ge=0, le=(1 << 63) - 1
        ),
    ]


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(
        name="bench",
        summary="made-up blocks for every prompt, to measure decoding without prefill",
        arguments=Arguments,
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector."""
    from core_kv_connectors.made_up import MadeUp

    return MadeUp(context.options["page_bytes"], context.arguments.seed)
