"""Manifest of the `tensorizer` loader."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


class TensorizerArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments under `--model-loader-extra-config`."""

    tensorizer_uri: Annotated[
        str | None, msgspec.Meta(description="Path of the file. Unset: the one *.tensors file beside config.json.")
    ] = None
    num_readers: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=256)] | None,
        msgspec.Meta(description="Threads that read. Unset: the library chooses."),
    ] = None
    verify_hash: Annotated[bool, msgspec.Meta(description="Check each tensor's hash, where the file has any.")] = False


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is. It claims nothing: users get it only when they ask for it."""
    return PluginSpec(
        name="tensorizer",
        summary="files written by tensorizer, beside config.json; only when asked for",
        arguments=TensorizerArguments,
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the loader."""
    from core_plugins.loaders.tensorizer.loader import TensorizerLoader

    return TensorizerLoader(context.arguments or TensorizerArguments())
