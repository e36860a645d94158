"""Manifest of the `lmcache` KV connector: blocks in LMCache's servers. Torch-free, and without LMCache."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1
ARGUMENT = "--kv-connectors-config.lmcache"


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --kv-connectors-config.lmcache."""

    url: Annotated[
        str,
        msgspec.Meta(
            description="lm://HOST:PORT of the server (lmcache_server HOST PORT), which engines share; "
            "tcp://HOST:PORT of an MP server (lmcache server) on this machine"
        ),
    ]
    key_file: Annotated[
        str | None,
        msgspec.Meta(description="file with the secret of all engines; unset: the server is on this machine"),
    ] = None


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="lmcache", summary="blocks in LMCache's server", arguments=Arguments)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector. Raises ConfigError."""
    from core_kv_connectors.stores.connector import open_store
    from core_kv_connectors.stores.lmcache import LMCacheStore
    from core_kv_connectors.stores.lmcache_mp import LMCacheMPStore
    from core_kv_connectors.stores.place import place_of, require_here, secret_of

    own, said = context.arguments, f"{ARGUMENT}.url"
    address, scheme = place_of(own.url, said, ("lm://", "tcp://"))
    if scheme == "tcp://":
        require_here(said, own.url, address, "an MP server shares memory with engines of its own machine")
    secret = secret_of(own.key_file, "lmcache", "url", address)
    store = LMCacheStore if scheme == "lm://" else LMCacheMPStore
    return open_store(context, "lmcache", lambda: store(*address), secret)
