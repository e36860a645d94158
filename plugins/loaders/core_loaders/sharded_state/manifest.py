"""Manifest of the `sharded_state` loader."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_runtime.models.tensors.shards import DEFAULT
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

CONTRACT = 1


class ShardedStateArguments(msgspec.Struct, frozen=True):
    """The loader's own arguments."""

    pattern: Annotated[
        str, msgspec.Meta(description="Names of the files, with {part} and, if it is there, {rank}.")
    ] = DEFAULT


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin. It precedes the safetensors loader, which would accept the parts as ordinary files."""
    return PluginSpec(
        name="sharded_state",
        summary="directories that core save-sharded wrote: config.json and model-rank-0-part-0.safetensors ...",
        arguments=ShardedStateArguments,
        priority=1,
    )


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim directories that contain the first part of the first rank."""
    if not isinstance(facts, FileFacts) or not facts.is_directory or "config.json" not in facts.names:
        return None
    first = DEFAULT.format(rank=0, part=0)
    return f"the directory holds config.json and {first}" if first in facts.names else None


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the loader."""
    from core_loaders.sharded_state.loader import ShardedStateLoader

    strategy = None if context.config is None else context.config.safetensors_load_strategy
    arguments = context.arguments or ShardedStateArguments()
    return ShardedStateLoader(arguments.pattern, strategy)
