"""Manifest of the `mooncake_store` KV connector: blocks in Mooncake's store. Torch-free, and imports Mooncake on demand."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1
ARGUMENT = "--kv-connectors-config.mooncake_store"


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --kv-connectors-config.mooncake_store."""

    master: Annotated[str, msgspec.Meta(description="HOST:PORT of the store's master (mooncake_master)")]
    size: Annotated[
        float,
        msgspec.Meta(description="GiB of this engine's memory that the store uses for blocks of all engines", ge=0),
    ] = 4.0
    host: Annotated[
        str | None,
        msgspec.Meta(
            description="address at which other engines reach this one; unset: that of the route to the master"
        ),
    ] = None
    metadata: Annotated[
        str, msgspec.Meta(description="address of a metadata server; P2PHANDSHAKE: engines ask each other")
    ] = "P2PHANDSHAKE"
    protocol: Annotated[
        Literal["tcp", "rdma"],
        msgspec.Meta(description="of the transfer engine; rdma needs a package with it, and was not tried"),
    ] = "tcp"
    key_file: Annotated[
        str | None,
        msgspec.Meta(description="file with the secret of all engines; unset: all of them are on this machine"),
    ] = None


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="mooncake_store", summary="blocks in Mooncake's store", arguments=Arguments)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector. Raises ConfigError where Mooncake is not installed, or its master is not there."""
    from core_kv_connectors.handoff.fabrics.own_address import own_address
    from core_kv_connectors.stores.connector import open_store
    from core_kv_connectors.stores.mooncake import MooncakeStore
    from core_kv_connectors.stores.place import place_of, secret_of

    own = context.arguments
    address, _ = place_of(own.master, f"{ARGUMENT}.master")
    secret = secret_of(own.key_file, "mooncake_store", "master", address)
    host = own.host or own_address(None, [own.master])
    segment = int(own.size * (1 << 30))
    return open_store(
        context,
        "mooncake_store",
        lambda: MooncakeStore(own.master, host, segment, own.protocol, own.metadata),
        secret,
    )
