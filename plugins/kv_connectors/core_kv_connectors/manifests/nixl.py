"""Manifest of the `nixl` KV connector: handoffs whose pages NIXL moves. Torch-free, and without NIXL until it is chosen."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_kv_connectors.manifests import tcp

CONTRACT = 1


class Arguments(tcp.Arguments, frozen=True, kw_only=True):
    """Keys of --kv-connectors-config.nixl: those of tcp, with a role in any case."""

    role: Annotated[
        Literal["kv_producer", "kv_consumer", "kv_both"],
        msgspec.Meta(description="blocks change hands for tickets (kv_transfer_params)"),
    ] = "kv_both"
    backends: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="backends of NIXL, which move host memory", min_length=1, max_length=4),
    ] = ("UCX",)


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="nixl", summary="blocks that other engines hand over, moved by NIXL", arguments=Arguments)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector. Raises ConfigError where NIXL is not installed."""
    from core_kv_connectors.handoff.fabrics.nixl import NixlFabric

    return tcp.moved(context, lambda: NixlFabric(context.arguments.backends))
