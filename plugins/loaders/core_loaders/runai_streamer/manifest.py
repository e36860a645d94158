"""Manifests of the loaders `runai_streamer` and `runai_streamer_sharded`."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core.plugin.manifest_of import manifest_of
from core_loaders.runai_streamer.arguments import ShardedArguments, StreamerArguments

CONTRACT = 1


core_spec, core_load = manifest_of(
    "runai_streamer",
    "safetensors through the Run:ai model streamer; only when asked for",
    "core_loaders.runai_streamer.loader:RunaiStreamerLoader",
    arguments=StreamerArguments,
)
"""There is no `core_claim`: users get this loader only by request."""


class ShardedManifest:
    """The manifest of `runai_streamer_sharded`, which claims nothing either."""

    CONTRACT = 1

    @hookimpl
    def core_spec(self) -> PluginSpec:
        """Describe the plugin."""
        return PluginSpec(
            name="runai_streamer_sharded",
            summary="directories that core save-sharded wrote, through the Run:ai model streamer; only when asked for",
            arguments=ShardedArguments,
        )

    @hookimpl
    def core_load(self, context: LoadContext) -> Any:
        """Build the loader."""
        from core_loaders.runai_streamer.loader import RunaiStreamerLoader
        from core_loaders.sharded_state.loader import ShardedStateLoader

        arguments = context.arguments or ShardedArguments()
        return RunaiStreamerLoader(arguments, ShardedStateLoader(arguments.pattern))


SHARDED = ShardedManifest()
