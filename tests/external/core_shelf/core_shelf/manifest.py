"""Manifest of the `shelf` KV connector."""

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --kv-transfer-config.kv_connector_extra_config."""

    directory: Annotated[str, msgspec.Meta(description="directory of pages; made when it is missing")] = "shelf"


@hookimpl
def core_spec() -> PluginSpec:
    return PluginSpec(name="shelf", summary="evicted blocks in a directory", arguments=Arguments)


@hookimpl
def core_load(context: LoadContext) -> Any:
    from core_shelf.shelf import Shelf

    return Shelf(context.arguments.directory, context.options["fingerprint"])
