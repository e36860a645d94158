"""Manifests of the loaders `runai_streamer` and `runai_streamer_sharded`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.models.shards import DEFAULT
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core.plugin.manifest_of import manifest_of

CONTRACT = 1


class StreamerArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments under `--model-loader-extra-config`."""

    concurrency: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1024)] | None,
        msgspec.Meta(description="Threads that read. Unset: the streamer's own default."),
    ] = None
    memory_limit: Annotated[
        Annotated[int, msgspec.Meta(ge=-1)] | None,
        msgspec.Meta(
            description="Bytes of the buffer: 0 for the largest tensor, -1 for no limit. Unset: the streamer's own default."
        ),
    ] = None


core_spec, core_load = manifest_of(
    "runai_streamer",
    "safetensors through the Run:ai model streamer; only when asked for",
    "core_plugins.loaders.runai_streamer.loader:RunaiStreamerLoader",
    arguments=StreamerArguments,
)
"""There is no `core_claim`: users get it only when they ask for it."""


class ShardedArguments(StreamerArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same, for files of `core save-sharded`."""

    pattern: Annotated[
        str, msgspec.Meta(description="Names of the files, with {part} and, if it is there, {rank}.")
    ] = DEFAULT


class ShardedManifest:
    """The manifest of `runai_streamer_sharded`. It claims nothing either."""

    CONTRACT = 1

    @hookimpl
    def core_spec(self) -> PluginSpec:
        """Say what the plugin is."""
        return PluginSpec(
            name="runai_streamer_sharded",
            summary="directories that core save-sharded wrote, through the Run:ai model streamer; only when asked for",
            arguments=ShardedArguments,
        )

    @hookimpl
    def core_load(self, context: LoadContext) -> Any:
        """Build the loader."""
        from core_plugins.loaders.runai_streamer.loader import RunaiStreamerLoader
        from core_plugins.loaders.sharded_state.loader import ShardedStateLoader

        arguments = context.arguments or ShardedArguments()
        return RunaiStreamerLoader(arguments, ShardedStateLoader(arguments.pattern))


SHARDED = ShardedManifest()
