"""Manifest of the `shm` KV connector: the pages of `file`, in shared memory and of this user alone. Torch-free."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_kv_connectors.load_failure import LoadFailure

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --kv-connectors-config.shm."""

    size: Annotated[
        float, msgspec.Meta(description="GiB of pages; those unused for longest are deleted first", gt=0)
    ] = 4.0
    directory: Annotated[
        str | None,
        msgspec.Meta(description="directory on a file system in memory; unset: core-kv-UID in /dev/shm"),
    ] = None
    load_failure: LoadFailure = "recompute"


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="shm", summary="blocks in shared memory, which outlive the engine", arguments=Arguments)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector."""
    from core_kv_connectors.tiers.shared_files import directory_in_memory, open_files

    return open_files(context, context.arguments.directory or directory_in_memory(), name="shm")
