"""Manifest of the `file` KV connector. Torch-free."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_kv_connectors.load_failure import LoadFailure

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --kv-connectors-config.file."""

    directory: Annotated[
        str, msgspec.Meta(description="directory of pages, which engines of several machines may share")
    ]
    size: Annotated[
        float, msgspec.Meta(description="GiB of pages; those unused for longest are deleted first", gt=0)
    ] = 10.0
    key_file: Annotated[
        str | None,
        msgspec.Meta(
            description="file with a secret, with which other users may write to the directory; unset: nobody may"
        ),
    ] = None
    load_failure: LoadFailure = "recompute"


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="file", summary="blocks in a directory that engines share", arguments=Arguments)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector."""
    from core_kv_connectors.tiers.shared_files import open_files

    return open_files(context, context.arguments.directory, key_file=context.arguments.key_file)
