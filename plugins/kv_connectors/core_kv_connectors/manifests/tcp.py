"""Manifest of the `tcp` KV connector. Torch-free."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --kv-connectors-config.tcp."""

    listen: Annotated[
        str | None,
        msgspec.Meta(description="HOST:PORT at which this engine offers its blocks to others; unset: it offers none"),
    ] = None
    peers: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="HOST:PORT of the engines whose blocks this one may use, in this order"),
    ] = ()
    size: Annotated[
        float, msgspec.Meta(description="GiB of offered pages; those unused for longest are dropped first", gt=0)
    ] = 4.0
    key_file: Annotated[
        str | None,
        msgspec.Meta(description="file with the secret of all engines; unset: all of them are on this machine"),
    ] = None


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="tcp", summary="blocks of other engines, over TCP", arguments=Arguments)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector."""
    from core_kv_connectors.peers.connector import Peers

    config = context.config
    own = context.arguments
    assert config is not None
    return Peers(
        config,
        context.options["fingerprint"],
        context.options["page_bytes"],
        context.options.get("new_page"),
        listen=own.listen,
        peers=own.peers,
        capacity=int(own.size * (1 << 30)),
        key_file=own.key_file,
    )
