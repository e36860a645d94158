"""Manifest of the `mooncake` KV connector: handoffs whose pages Mooncake's transfer engine moves. Torch-free."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_kv_connectors.manifests import tcp

CONTRACT = 1


class Arguments(tcp.Arguments, frozen=True, kw_only=True):
    """Keys of --kv-connectors-config.mooncake: those of tcp, with a role in any case."""

    role: Annotated[
        Literal["kv_producer", "kv_consumer", "kv_both"],
        msgspec.Meta(description="blocks change hands for tickets (kv_transfer_params)"),
    ] = "kv_both"
    protocol: Annotated[
        Literal["tcp", "rdma"],
        msgspec.Meta(description="of the transfer engine; rdma needs a package with it, and was not tried"),
    ] = "tcp"


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(
        name="mooncake", summary="blocks that other engines hand over, moved by Mooncake", arguments=Arguments
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector. Raises ConfigError where Mooncake's transfer engine is not installed."""
    from core_kv_connectors.handoff.fabrics.mooncake import MooncakeFabric
    from core_kv_connectors.handoff.fabrics.own_address import own_address

    own = context.arguments
    return tcp.moved(context, lambda: MooncakeFabric(own_address(own.listen, own.peers), own.protocol))
