"""Manifest of the `tcp` KV connector: blocks of other engines, shared by name or handed over for tickets. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1
GIB = 1 << 30
LEAST_RATE = 10_000_000
"""Lowest limit in bytes a second: see `core_kv_connectors.peers.pace`, which is not imported for a manifest."""


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
    role: Annotated[
        Literal["kv_producer", "kv_consumer", "kv_both"] | None,
        msgspec.Meta(
            description="blocks change hands for tickets alone (kv_transfer_params); unset: peers share them all"
        ),
    ] = None
    engine_id: Annotated[str | None, msgspec.Meta(description="with a role: name in answers; unset: drawn")] = None
    lease: Annotated[
        float, msgspec.Meta(description="with a role: seconds that blocks wait for their consumer", gt=0, le=3600)
    ] = 30.0
    buffer: Annotated[
        int, msgspec.Meta(description="with a role: bytes of received pages that are not in the KV cache yet", gt=0)
    ] = 1_000_000_000
    rate_limit: Annotated[
        Annotated[int, msgspec.Meta(ge=LEAST_RATE)] | None,
        msgspec.Meta(description="bytes of pages a second that are sent, and as many that are taken; unset: no limit"),
    ] = None
    load_failure: Annotated[
        Literal["recompute", "fail"],
        msgspec.Meta(description="with a role: a prompt whose pages do not come is computed, or its request fails"),
    ] = "recompute"


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
    if own.role is not None and config.cache.enable_prefix_caching:
        return handoff(context)
    return Peers(
        *_common(context),
        listen=own.listen,
        peers=own.peers,
        capacity=int(own.size * GIB),
        key_file=own.key_file,
        rate=own.rate_limit,
    )


def handoff(context: LoadContext, transport: Callable[[int], Any] | None = None) -> Any:
    """Build the connector of an engine with a role. transport: see `Handoff`."""
    from core_kv_connectors.handoff.connector import Handoff
    from core_kv_connectors.handoff.roles import Roles
    from core_kv_connectors.tiers.shared_files import read_key

    own = context.arguments
    roles = Roles.read(
        own.role,
        own.listen,
        own.peers,
        lease_s=own.lease,
        engine_id=own.engine_id,
        has_key=own.key_file is not None,
        load_failure=own.load_failure,
    )
    secret = b"" if own.key_file is None else read_key(own.key_file, "--kv-key-file")
    return Handoff(
        *_common(context),
        roles=roles,
        secret=secret,
        capacity=int(own.size * GIB),
        buffer=own.buffer,
        rate=own.rate_limit,
        transport=transport,
    )


def moved(context: LoadContext, fabric: Callable[[], Any]) -> Any:
    """Build a connector whose pages a library moves. fabric: opens it. Raises ConfigError, without prefix caching too."""
    from core.api.errors import ConfigError
    from core_kv_connectors.handoff.fabrics.fabric import FabricTransport

    config = context.config
    assert config is not None
    if not config.cache.enable_prefix_caching:
        raise ConfigError(["this KV connector hands over cached blocks; leave out --no-enable-prefix-caching."])
    opened = fabric()
    return handoff(context, lambda page_bytes: FabricTransport(opened, page_bytes))


def _common(context: LoadContext) -> tuple[Any, ...]:
    """Return what every connector of peers is given."""
    options = context.options
    return context.config, options["fingerprint"], options["page_bytes"], options.get("new_page")
