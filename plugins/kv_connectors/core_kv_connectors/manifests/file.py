"""Manifest of the `file` KV connector. Torch-free."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

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
    load_failure: Annotated[
        Literal["recompute", "fail"],
        msgspec.Meta(
            description="recompute computes a prompt whose pages are there and do not come; fail ends its request"
        ),
    ] = "recompute"


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="file", summary="blocks in a directory that engines share", arguments=Arguments)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the connector."""
    from core_kv_connectors.tiers.shared_files import SharedFiles

    config = context.config
    own = context.arguments
    assert config is not None
    made = SharedFiles(
        config,
        context.options["fingerprint"],
        context.options["page_bytes"],
        context.options.get("new_page"),
        directory=own.directory,
        capacity=int(own.size * (1 << 30)),
        key_file=own.key_file,
    )
    made.fails_loads = own.load_failure == "fail"
    return made
