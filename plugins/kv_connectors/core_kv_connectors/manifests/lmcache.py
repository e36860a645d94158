"""Manifest of the `lmcache` KV connector: blocks in LMCache's server. Torch-free, and without LMCache."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1
ARGUMENT = "--kv-connectors-config.lmcache"


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --kv-connectors-config.lmcache."""

    url: Annotated[
        str, msgspec.Meta(description="lm://HOST:PORT of the server (lmcache_server HOST PORT), which engines share")
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
    from core_kv_connectors.stores.place import place_of, secret_of

    own = context.arguments
    address = place_of(own.url, f"{ARGUMENT}.url", "lm://")
    secret = secret_of(own.key_file, "lmcache", "url", address)
    return open_store(context, "lmcache", lambda: LMCacheStore(*address), secret)
